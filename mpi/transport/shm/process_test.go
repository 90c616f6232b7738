package shm

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests with real processes start this binary again: FISTERRA_TEST_PART
// names the part (in parts) that the process plays, as rank 1 of 2. Rank 0's
// address comes on its standard input; its own goes to its standard output, followed by
// what the part has to say, a line each.
const partVariable = "FISTERRA_TEST_PART"

// parts are the programs of a started rank. Each holds its lock.
var parts = map[string]func(r *testRank, in *bufio.Reader) error{
	"echo":     partEcho,
	"expose":   partExpose,
	"pull":     partPull,
	"flood":    partFlood,
	"limit":    partLimit,
	"doorbell": partDoorbell,
	"import":   partImport,
	"knock":    partKnock,
}

func TestMain(m *testing.M) {
	if part := os.Getenv(partVariable); part != "" {
		os.Exit(play(part))
	}
	os.Exit(m.Run())
}

func play(part string) int {
	if err := playPart(part); err != nil {
		fmt.Fprintln(os.Stderr, part+":", err)
		return 1
	}
	return 0
}

func playPart(part string) error {
	in := bufio.NewReader(os.Stdin)
	cfg := Config{Rank: 1, Size: 2, Job: "test", Secret: testSecret, HandshakeTimeout: patience,
		Copies: numberOf[os.Getenv("FISTERRA_TEST_COPIES")]}
	p, err := Open(cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	r := &testRank{Provider: p, pulled: map[uint64]error{}, lost: map[int]error{}}
	fmt.Printf("%x\n", p.Address())
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	address, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.Connect(0, address); err != nil {
		return err
	}
	return parts[part](r, in)
}

// process is a started rank.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// memoryVariable says what memory the process has its messages in (testRank.buffer).
const memoryVariable = "FISTERRA_TEST_MEMORY"

// copies tells the process how often to copy large messages.
func copies(number string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Env = append(c.Env, "FISTERRA_TEST_COPIES="+number) }
}

// onceIn has the process copy them once, in such memory.
func onceIn(memory string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Env = append(c.Env, "FISTERRA_TEST_COPIES=one", memoryVariable+"="+memory) }
}

// start starts rank 1 and connects r to it.
func start(t testing.TB, r *testRank, part string, change func(*exec.Cmd)) *process {
	t.Helper()
	p, address := begin(t, r, part, change)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.Connect(1, address); err != nil {
		t.Fatal(err)
	}
	p.say(t, hex.EncodeToString(r.Address()))
	return p
}

// begin starts rank 1, which waits for r's address, and returns its own. At the test's end r is closed before it.
func begin(t testing.TB, r *testRank, part string, change func(*exec.Cmd)) (p *process, address []byte) {
	t.Helper()
	p = &process{Cmd: exec.Command("/proc/self/exe")}
	p.Env = append(os.Environ(), partVariable+"="+part)
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if change != nil {
		change(p.Cmd)
	}
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.in.Close()
		r.Close()
		timer := time.AfterFunc(patience, func() { p.Process.Kill() })
		p.Wait()
		timer.Stop()
	})
	address, err = hex.DecodeString(p.line(t))
	if err != nil {
		t.Fatal(err)
	}
	return p, address
}

// line reads what the process says next.
func (p *process) line(t testing.TB) string {
	t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the other process ended: %v", err)
	}
	return strings.TrimSpace(s)
}

func (p *process) say(t testing.TB, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
}

// partEcho sends every message back until its peer is gone. The first number
// it reads is the largest message.
func partEcho(r *testRank, in *bufio.Reader) error {
	n, err := readNumber(in)
	if err != nil {
		return err
	}
	buf := make([]byte, n)
	for len(r.lost) == 0 {
		if err := r.recv(buf); err != nil {
			return nil // its peer has nothing more to say
		}
		if len(r.lost) > 0 {
			break
		}
		if err := r.send(0, buf[:r.lastN]); err != nil && len(r.lost) == 0 {
			return err
		}
	}
	return nil
}

func readNumber(in *bufio.Reader) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// BenchmarkPingPong is half a round trip between two processes.
func BenchmarkPingPong(b *testing.B) {
	for _, number := range []string{"one", "two"} {
		for _, n := range []int{8, 64, 1024, 4096, 8191, 8192, 16384, 65536, 256 << 10, 1 << 20, 2 << 20, 4 << 20} {
			b.Run(fmt.Sprintf("%s/%dB", number, n), func(b *testing.B) {
				r := openRank(b, 0, 2, func(cfg *Config) { cfg.Copies = numberOf[number] })
				p := start(b, r, "echo", copies(number))
				p.say(b, strconv.Itoa(n))
				r.mu.Lock()
				defer r.mu.Unlock()
				out, in := pattern(n, 1), make([]byte, n)
				trip := func() {
					if err := r.send(1, out); err != nil {
						b.Fatal(err)
					}
					if err := r.recv(in); err != nil {
						b.Fatal(err)
					}
				}
				for range 100 {
					trip()
				}
				for i := range in {
					if in[i] != out[i] {
						b.Fatalf("byte %d came back as %d, sent %d", i, in[i], out[i])
					}
				}
				var batches []float64
				for b.Loop() {
					batch := max(1, 20000/(n+200))
					begun := time.Now()
					for range batch {
						trip()
					}
					batches = append(batches, float64(time.Since(begun).Nanoseconds())/float64(2*batch))
				}
				slices.Sort(batches)
				b.ReportMetric(batches[len(batches)/2], "ns/median")
				b.ReportMetric(batches[len(batches)/10], "ns/p10") // of batches: what other load leaves alone
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
