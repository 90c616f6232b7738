package tcp

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The ping-pong runs between two processes: the benchmark and its own binary
// started again as the echo. Large messages go as the engine sends them, by request,
// clearance and Data.

const echoVariable = "FISTERRA_TEST_TCP_ECHO"

const (
	kindEager   transport.Kind = 2
	kindRequest transport.Kind = 3
	kindClear   transport.Kind = 4
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(echoVariable); spec != "" {
		if err := echo(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// player is the smallest engine that can play ping-pong.
type player struct {
	*Provider
	peer       int
	send, recv []byte
	got        int // messages that arrived whole
	clear      bool
	done       bool
	ended      bool
}

func (p *player) Message(_ int, h *transport.Header, payload []byte) {
	switch h.Kind {
	case kindEager:
		copy(p.recv, payload)
		p.got++
	case kindRequest:
		p.offer(&transport.Header{Kind: kindClear, Token: h.Aux}, nil)
	case kindClear:
		p.clear = true
	default:
		p.ended = true
	}
}
func (p *player) Place(_ int, h *transport.Header, off, size int) []byte { return p.recv[off:size] }
func (p *player) Placed(int, *transport.Header)                          { p.got++ }
func (p *player) Complete(op uint64, err error)                          { p.done = true }
func (p *player) Lost(peer int, err error)                               { p.ended = true }
func (p *player) Outside(work func())                                    { work() }

func (p *player) offer(h *transport.Header, payload []byte) {
	for p.Send(p.peer, h, payload) == transport.Full {
		p.Poll(p)
	}
}

func (p *player) until(done func() bool) {
	for i := 1; !done() && !p.ended; i++ {
		if p.Poll(p) > 0 {
			i = 0
		} else if i > 2000 {
			unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

func (p *player) ping(n int) {
	if n < rendezvousBytes {
		h := transport.Header{Kind: kindEager, Context: 1, Tag: 7, Bytes: uint64(n)}
		p.offer(&h, p.send[:n])
		return
	}
	p.clear, p.done = false, false
	p.offer(&transport.Header{Kind: kindRequest, Context: 1, Tag: 7, Bytes: uint64(n), Aux: 1}, nil)
	p.until(func() bool { return p.clear })
	h := transport.Header{Kind: transport.Data, Token: 1, Bytes: uint64(n)}
	for p.SendFrom(p.peer, &h, p.send[:n], 5) == transport.Full {
		p.Poll(p)
	}
	p.until(func() bool { return p.done })
}

func (p *player) pong() {
	want := p.got + 1
	p.until(func() bool { return p.got >= want })
}

const playBytes = 4 << 20

func newPlayer(rank int, host string, set transport.Set) (*player, error) {
	p, err := Open(Config{Rank: rank, Size: 2, Job: "bench.0", Secret: testSecret, Host: host, Set: set,
		CongestionControl: os.Getenv("FISTERRA_TEST_TCP_CC")})
	if err != nil {
		return nil, err
	}
	p.SetLayout([32]byte{})
	return &player{Provider: p, peer: 1 - rank, send: pattern(playBytes, byte(rank)), recv: make([]byte, playBytes)}, nil
}

// echoOf is what echoVariable says to an echo with an address on host, for rank 0 at another.
func echoOf(host, address string) string { return echoVariable + "=" + host + " " + address }

// echo is the other process: for each line "SIZE COUNT" on stdin it plays COUNT rounds.
func echo(spec string) error {
	host, address, _ := strings.Cut(spec, " ")
	fd, err := unix.EpollCreate1(0)
	if err != nil {
		return err
	}
	p, err := newPlayer(1, host, &epollSet{fd: fd, in: map[int]bool{}})
	if err != nil {
		return err
	}
	defer p.Close()
	p.Connect(0, []byte(address))
	fmt.Println(string(p.Address()))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		size, count, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.Atoi(size)
		rounds, err := strconv.Atoi(count)
		if err != nil {
			return err
		}
		for range rounds {
			p.pong()
			p.ping(n)
		}
	}
	return nil
}

func BenchmarkPingPong(b *testing.B) {
	p, err := newPlayer(0, "127.0.0.1", newEpollSet(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close() })
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoOf("127.0.0.1", string(p.Address())))
	cmd.Stderr = os.Stderr
	orders, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { orders.Close(); cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Connect(1, []byte(strings.TrimSpace(address))); err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{8, 4 << 10, 64 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			const warm = 10
			fmt.Fprintln(orders, n, b.N+warm)
			round := func() { p.ping(n); p.pong() }
			for range warm {
				round()
			}
			want := pattern(playBytes, 1)
			for i := range n {
				if p.recv[i] != want[i] {
					b.Fatalf("byte %d of %d differs", i, n)
				}
			}
			runtime.GC()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				round()
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/2, "µs/one-way")
			if p.ended {
				b.Fatal("the echo has ended")
			}
		})
	}
}
