package tcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

func TestMessagesInOrder(t *testing.T) {
	ranks := openRanks(t, 2)
	sizes := []int{0, 1, 8, inlineBytes, inlineBytes + 1, stagingBytes, EagerBytes - 1, EagerBytes, 3, 0}
	h := func(i int) transport.Header {
		return transport.Header{Kind: transport.Kind(2 + i%5), Context: uint32(i), Tag: int32(-i), Bytes: uint64(i * 7), Token: uint64(i % 3), Aux: uint64(i%2) << 63}
	}
	for i, n := range sizes {
		send(t, ranks, 0, 1, h(i), pattern(n, byte(i)))
	}
	pump(t, ranks, "arrival", func() bool { return len(ranks[1].messages) == len(sizes) })
	for i, m := range ranks[1].messages {
		if m.peer != 0 || m.h != h(i) || !bytes.Equal(m.payload, pattern(sizes[i], byte(i))) {
			t.Errorf("message %d: from %d, header %+v, want %+v, %d bytes, want %d", i, m.peer, m.h, h(i), len(m.payload), sizes[i])
		}
	}
}

func TestData(t *testing.T) {
	for _, n := range []int{0, 1, 100, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3*chunkBytes + 17} {
		for _, window := range []int{0, 1000, chunkBytes - 3} {
			if window > 0 && n > window*2000 {
				continue
			}
			t.Run(fmt.Sprintf("%d window %d", n, window), func(t *testing.T) {
				ranks := openRanks(t, 2)
				src, dst := pattern(n, 9), make([]byte, n)
				ranks[1].dst[77] = dst
				ranks[1].window = window
				send(t, ranks, 0, 1, transport.Header{Kind: 5, Tag: 1}, []byte("before"))
				sendFrom(t, ranks, 0, 1, transport.Header{Kind: transport.Data, Token: 77, Bytes: uint64(n)}, src, 4)
				send(t, ranks, 0, 1, transport.Header{Kind: 5, Tag: 2}, []byte("after"))
				pump(t, ranks, "data", func() bool { return len(ranks[1].messages) == 2 && len(ranks[0].completed) == 1 })
				if err, ok := ranks[0].completed[4]; !ok || err != nil {
					t.Fatalf("completion: %v, %v", ok, err)
				}
				if len(ranks[1].placed) != 1 || ranks[1].placed[0].Token != 77 || !bytes.Equal(dst, src) {
					t.Fatalf("placed %v, equal %v", ranks[1].placed, bytes.Equal(dst, src))
				}
				if n > 0 && ranks[1].asked == 0 {
					t.Fatal("the engine was not asked for memory")
				}
			})
		}
	}
}

// The receiver gives up in the middle: the rest is thrown away and the stream goes on.
func TestDataDiscarded(t *testing.T) {
	ranks := openRanks(t, 2)
	const n = 2*chunkBytes + 5
	dst := make([]byte, 1000) // Place has no memory for the rest
	ranks[1].dst[1] = dst
	src := pattern(n, 1)
	sendFrom(t, ranks, 0, 1, transport.Header{Kind: transport.Data, Token: 1, Bytes: n}, src, 1)
	sendFrom(t, ranks, 0, 1, transport.Header{Kind: transport.Data, Token: 2, Bytes: n}, src, 2) // no memory at all
	send(t, ranks, 0, 1, transport.Header{Kind: 5}, []byte("after"))
	pump(t, ranks, "the message after", func() bool { return len(ranks[1].messages) == 1 })
	if !bytes.Equal(dst, src[:1000]) || string(ranks[1].messages[0].payload) != "after" {
		t.Fatal("wrong bytes")
	}
}

// A receiver that does not poll: the sender gets Full after a bounded number of bytes,
// and everything that was taken arrives in order once it polls.
func TestBackPressure(t *testing.T) {
	ranks := openRanks(t, 2)
	send(t, ranks, 0, 1, transport.Header{Kind: 5}, nil)
	pump(t, ranks, "connection", func() bool { return len(ranks[1].messages) == 1 })
	payload := pattern(10000, 1)
	sent, h := 0, transport.Header{Kind: 5, Bytes: 10000}
	for {
		h.Token = uint64(sent)
		o := ranks[0].Send(1, &h, payload)
		if o == transport.Full {
			break
		}
		if o != transport.Sent || sent > 100000 {
			t.Fatalf("after %d messages: %v", sent, o)
		}
		sent++
	}
	if !ranks[0].set.sleep(0) && ranks[0].links[1].conn.blocked == false {
		t.Fatal("a blocked connection is not watched")
	}
	pump(t, ranks, "everything", func() bool { return len(ranks[1].messages) == 1+sent })
	for i, m := range ranks[1].messages[1:] {
		if m.h.Token != uint64(i) || !bytes.Equal(m.payload, payload) {
			t.Fatalf("message %d has token %d", i, m.h.Token)
		}
	}
	if c := ranks[0].links[1].conn; c.blocked || c.out.stage != nil || ranks[0].blocked != 0 {
		t.Fatal("the drained connection still holds its stage")
	}
	t.Logf("Full after %d messages of 10000 bytes", sent)
}

func TestAbandon(t *testing.T) {
	for _, blocked := range []bool{false, true} {
		t.Run(fmt.Sprintf("queued behind another: %v", blocked), func(t *testing.T) {
			ranks := openRanks(t, 2)
			send(t, ranks, 0, 1, transport.Header{Kind: 5}, nil)
			pump(t, ranks, "connection", func() bool { return len(ranks[1].messages) == 1 })
			const n = 64 << 20 // more than any kernel's buffers
			src, dst := pattern(n, 1), make([]byte, n)
			ranks[1].dst[1], ranks[1].dst[2] = dst, dst
			op := uint64(1)
			if blocked {
				op = 2
				ranks[0].SendFrom(1, &transport.Header{Kind: transport.Data, Token: 1, Bytes: n}, src, 1)
			}
			if o := ranks[0].SendFrom(1, &transport.Header{Kind: transport.Data, Token: op, Bytes: n}, src, op); o != transport.Sent {
				t.Fatal(o)
			}
			ranks[0].Abandon(op)
			ranks[0].Poll(ranks[0])
			if err := ranks[0].completed[op]; !errors.Is(err, errAbandoned) {
				t.Fatalf("completion of an abandoned send: %v", err)
			}
			if !blocked {
				clear(src) // the memory is the caller's again
			}
			send(t, ranks, 0, 1, transport.Header{Kind: 5}, []byte("after"))
			pump(t, ranks, "the message after", func() bool { return len(ranks[1].messages) == 2 })
			if want := map[bool]int{false: 0, true: 1}[blocked]; len(ranks[1].placed) != want {
				t.Fatalf("%d messages placed, want %d", len(ranks[1].placed), want)
			}
			whole := pattern(n, 1)
			for i := range dst {
				if dst[i] != 0 && dst[i] != whole[i] {
					t.Fatalf("byte %d was written after the memory was given back", i)
				}
			}
		})
	}
}

// Both sides dial at the same moment; one connection comes of it.
func TestSimultaneousConnect(t *testing.T) {
	for range 20 {
		ranks := openRanks(t, 2)
		h := transport.Header{Kind: 5}
		ranks[0].Send(1, &h, nil)
		ranks[1].Send(0, &h, nil)
		send(t, ranks, 0, 1, h, []byte("a"))
		send(t, ranks, 1, 0, h, []byte("b"))
		pump(t, ranks, "both", func() bool { return len(ranks[0].messages) == 1 && len(ranks[1].messages) == 1 })
		if len(ranks[0].conns) != 1 || len(ranks[1].conns) != 1 || len(ranks[0].lost)+len(ranks[1].lost) != 0 {
			t.Fatalf("connections %d and %d, lost %v %v", len(ranks[0].conns), len(ranks[1].conns), ranks[0].lost, ranks[1].lost)
		}
		for _, r := range ranks {
			r.Close()
		}
	}
}

// More connections than are read one by one.
func TestManyPeers(t *testing.T) {
	const n = 9
	ranks := openRanks(t, n)
	for round := range 3 {
		for i := range n {
			for j := range n {
				if i != j {
					send(t, ranks, i, j, transport.Header{Kind: 5, Tag: int32(round)}, pattern(5000, byte(i)))
				}
			}
		}
	}
	pump(t, ranks, "all to all", func() bool {
		for _, r := range ranks {
			if len(r.messages) < 3*(n-1) {
				return false
			}
		}
		return true
	})
	for _, r := range ranks {
		next := map[int]int32{}
		for _, m := range r.messages {
			if m.h.Tag != next[m.peer] || !bytes.Equal(m.payload, pattern(5000, byte(m.peer))) {
				t.Fatalf("from %d: tag %d, want %d", m.peer, m.h.Tag, next[m.peer])
			}
			next[m.peer]++
		}
		if r.epoll < 0 {
			t.Fatal("no epoll set")
		}
	}
}

// A sleeping rank is woken by a connection and by a message.
func TestWakesSleeper(t *testing.T) {
	ranks := openRanks(t, 2)
	h := transport.Header{Kind: 5}
	ranks[0].Send(1, &h, nil)
	for i, r := range ranks {
		if !r.set.sleep(10 * time.Second) {
			t.Fatalf("rank %d was not woken by the connection", i)
		}
		if !r.Arm() {
			t.Fatalf("rank %d: Arm does not report the connection", i)
		}
		r.Poll(r)
		if r.Arm() || r.set.sleep(0) {
			t.Fatalf("rank %d stays awake", i)
		}
	}
	if o := ranks[0].Send(1, &h, []byte("x")); o != transport.Sent {
		t.Fatal(o)
	}
	if !ranks[1].set.sleep(10 * time.Second) {
		t.Fatal("not woken by a message")
	}
}

func connected(t *testing.T, n int) []*rank {
	ranks := openRanks(t, n)
	for i := range n {
		for j := range i {
			send(t, ranks, i, j, transport.Header{Kind: 5}, nil)
		}
	}
	pump(t, ranks, "connections", func() bool {
		for i, r := range ranks {
			if len(r.conns) != n-1 || len(r.messages) != n-1-i {
				return false
			}
		}
		return true
	})
	return ranks
}

func TestLost(t *testing.T) {
	ranks := connected(t, 3)
	src := make([]byte, 64<<20)
	ranks[0].SendFrom(1, &transport.Header{Kind: transport.Data, Token: 1, Bytes: 64 << 20}, src, 8)
	send(t, ranks[:1], 0, 2, transport.Header{Kind: 5}, nil)
	unix.Close(ranks[1].conns[0].fd) // as the kernel does when the process dies
	unix.Close(ranks[1].conns[1].fd)
	pump(t, []*rank{ranks[0], ranks[2]}, "loss", func() bool { return ranks[0].lost[1] != nil && ranks[2].lost[1] != nil })
	if err := ranks[0].completed[8]; err == nil {
		t.Fatal("the operation with the lost rank did not fail")
	}
	h := transport.Header{Kind: 5}
	if o := ranks[0].Send(1, &h, nil); o != transport.Gone {
		t.Fatalf("send to a lost rank: %v", o)
	}
	if len(ranks[0].lost) != 1 || len(ranks[2].lost) != 1 {
		t.Fatalf("lost: %v, %v", ranks[0].lost, ranks[2].lost)
	}
	ranks[1].Provider.conns = nil // their descriptors are closed already
}

func TestDetach(t *testing.T) {
	ranks := connected(t, 2)
	src := make([]byte, 64<<20)
	ranks[0].SendFrom(1, &transport.Header{Kind: transport.Data, Token: 1, Bytes: 64 << 20}, src, 8)
	ranks[0].Detach(1)
	ranks[0].Poll(ranks[0])
	if err := ranks[0].completed[8]; !errors.Is(err, errDetached) {
		t.Fatalf("operation in flight: %v", err)
	}
	h := transport.Header{Kind: 5}
	if o := ranks[0].Send(1, &h, nil); o != transport.Gone {
		t.Fatalf("send after Detach: %v", o)
	}
	pump(t, ranks, "the other side's loss", func() bool { return ranks[1].lost[0] != nil })
	if len(ranks[0].lost) != 0 {
		t.Fatalf("a detached peer was reported lost: %v", ranks[0].lost)
	}
}

// What a peer said before it went is handed over before its loss.
func TestLastWords(t *testing.T) {
	ranks := connected(t, 2)
	before := len(ranks[1].messages)
	h := transport.Header{Kind: 5}
	for range 50 {
		ranks[0].Send(1, &h, pattern(5000, 1))
	}
	ranks[0].Close()
	pump(t, ranks[1:], "loss", func() bool { return ranks[1].lost[0] != nil })
	if n := len(ranks[1].messages) - before; n != 50 {
		t.Fatalf("%d messages before the loss, want 50", n)
	}
}

// Close lets what was accepted leave while the peer reads.
func TestCloseFlushes(t *testing.T) {
	ranks := connected(t, 2)
	before := len(ranks[1].messages)
	h := transport.Header{Kind: 5}
	sent := 0
	for ranks[0].Send(1, &h, pattern(50000, 1)) == transport.Sent {
		sent++
	}
	var wg sync.WaitGroup
	wg.Go(func() { ranks[0].Close() })
	pump(t, ranks[1:], "loss", func() bool { return ranks[1].lost[0] != nil })
	wg.Wait()
	if n := len(ranks[1].messages) - before; n != sent {
		t.Fatalf("%d of %d accepted messages arrived", n, sent)
	}
}

func TestConnectRefusesAddresses(t *testing.T) {
	r := openRank(t, Config{Rank: 0, Size: 2})
	for _, address := range []string{"", "host:1", "127.0.0.1", "127.0.0.1:0", "0.0.0.0:5", "127.0.0.1:99999"} {
		if err := r.Connect(1, []byte(address)); err == nil {
			t.Errorf("address %q was taken", address)
		}
	}
	if err := r.Connect(0, []byte("127.0.0.1:5")); err == nil {
		t.Error("a rank is its own peer")
	}
}

func TestOpenRefuses(t *testing.T) {
	for want, cfg := range map[string]Config{
		"wildcard":           {Size: 1, Secret: testSecret, Host: "0.0.0.0"},
		"neither":            {Size: 1, Secret: testSecret, Host: "no.such.host.invalid"},
		"secret has 3 bytes": {Size: 1, Secret: testSecret[:3], Host: "127.0.0.1"},
		"rank 2 of 2":        {Size: 2, Rank: 2, Secret: testSecret, Host: "127.0.0.1"},
		`"turbo"`:            {Size: 1, Secret: testSecret, Host: "127.0.0.1", CongestionControl: "turbo"},
	} {
		cfg.Set = newEpollSet(t)
		if p, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
			if err == nil {
				p.Close()
			}
		}
	}
}

func TestCongestionControl(t *testing.T) {
	r := openRank(t, Config{Rank: 0, Size: 2, CongestionControl: "reno"})
	other := openRank(t, Config{Rank: 1, Size: 2})
	ranks := []*rank{r, other}
	introduce(t, ranks)
	send(t, ranks, 0, 1, transport.Header{Kind: 5}, nil)
	pump(t, ranks, "connection", func() bool { return len(other.conns) == 1 })
	for _, c := range []struct {
		r    *rank
		want string
	}{{r, "reno"}, {other, other.congestion}} {
		got, err := unix.GetsockoptString(c.r.conns[0].fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if got = strings.TrimRight(got, "\x00"); err != nil || got != c.want || strings.HasPrefix(got, "bbr") {
			t.Errorf("congestion control %q, %v, want %q", got, err, c.want)
		}
		if !strings.Contains(c.r.Reason(), c.want) {
			t.Errorf("reason %q does not name %q", c.r.Reason(), c.want)
		}
	}
}

// A peer that knows the layout earlier dials earlier; its hello waits.
func TestLayoutComesLater(t *testing.T) {
	ranks := []*rank{openRank(t, Config{Rank: 0, Size: 2}), openRank(t, Config{Rank: 1, Size: 2})}
	ranks[0].SetLayout([32]byte{7})
	ranks[0].Connect(1, ranks[1].Address())
	h := transport.Header{Kind: 5}
	if o := ranks[0].Send(1, &h, nil); o != transport.Full {
		t.Fatal(o)
	}
	if ranks[0].set.sleep(50*time.Millisecond) || len(ranks[0].conns)+len(ranks[0].lost) > 0 {
		t.Fatal("something came of it before the peer knew the layout")
	}
	ranks[1].SetLayout([32]byte{7})
	send(t, ranks, 0, 1, h, []byte("x"))
	pump(t, ranks, "the message", func() bool { return len(ranks[1].messages) == 1 })
}

// Nobody listens where the peer should be: it is lost, not waited for.
func TestPeerAbsent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	r := openRank(t, Config{Rank: 0, Size: 2})
	introduce(t, []*rank{r})
	r.Connect(1, []byte(address))
	h := transport.Header{Kind: 5}
	if o := r.Send(1, &h, nil); o != transport.Full {
		t.Fatal(o)
	}
	pump(t, []*rank{r}, "loss", func() bool { return r.lost[1] != nil })
	if !strings.Contains(r.lost[1].Error(), "refused") {
		t.Fatal(r.lost[1])
	}
}

// A rank with another layout, secret or incarnation never becomes a peer.
func TestStrangersStayOut(t *testing.T) {
	for name, change := range map[string]func(*Config, *rank){
		"layout":  func(_ *Config, r *rank) { r.SetLayout([32]byte{1}) },
		"secret":  func(c *Config, _ *rank) { c.Secret = bytes.Repeat([]byte{9}, wire.SecretBytes) },
		"restart": func(c *Config, _ *rank) { c.Restart = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			host := openRank(t, Config{Rank: 0, Size: 2, Log: textLog(&log)})
			cfg := Config{Rank: 1, Size: 2}
			if name != "layout" {
				change(&cfg, nil)
			}
			guest := openRank(t, cfg)
			if name == "layout" {
				change(nil, guest)
			}
			ranks := []*rank{host, guest}
			introduce(t, ranks)
			h := transport.Header{Kind: 5}
			guest.Send(0, &h, nil)
			pump(t, ranks, "refusal", func() bool { return guest.lost[0] != nil })
			if len(host.conns) != 0 || len(host.lost) != 0 {
				t.Fatal("the stranger is a peer")
			}
			pump(t, ranks, "log line", func() bool { return strings.Contains(log.String(), "connection refused") })
		})
	}
}

// An authenticated peer that sends nonsense is lost; nothing panics or grows.
func TestMalformedStream(t *testing.T) {
	valid := func(h transport.Header, payload uint64) []byte {
		b := make([]byte, maxHeadBytes)
		return b[:packHeader(b, &h, payload)]
	}
	for name, raw := range map[string][]byte{
		"garbage":       bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 10),
		"flags":         {0xf1, 0x46, 2, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"eager too big": valid(transport.Header{Kind: 2}, 1<<40),
		"data too big":  valid(transport.Header{Kind: transport.Data}, 1<<63),
		"chunk too big": append(valid(transport.Header{Kind: transport.Data, Token: 1}, 1<<40), 0xff, 0xff, 0xff, 0x7f),
		"chunk beyond":  append(valid(transport.Header{Kind: transport.Data, Token: 1}, 10), 11, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			ranks := connected(t, 2)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			unix.Write(ranks[0].conns[0].fd, raw)
			pump(t, ranks[1:], "loss", func() bool { return ranks[1].lost[0] != nil })
			runtime.ReadMemStats(&after)
			if !strings.Contains(ranks[1].lost[0].Error(), "malformed") {
				t.Fatal(ranks[1].lost[0])
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
				t.Fatalf("%d bytes allocated", grown)
			}
		})
	}
}

// No allocation per message, eager or Data, with other goroutines running.
func TestNoAllocation(t *testing.T) {
	ranks := connected(t, 2)
	big := pattern(1<<20, 1)
	ranks[1].dst[1] = make([]byte, 1<<20)
	got, done := 0, 0
	ranks[1].onMessage = func(int, *transport.Header, []byte) { got++ }
	counting := &counter{rank: ranks[1]}
	sender := &counter{rank: ranks[0]}
	small := transport.Header{Kind: 2, Bytes: 100}
	data := transport.Header{Kind: transport.Data, Token: 1, Bytes: 1 << 20}
	round := func() {
		for _, n := range []int{8, 100, 5000, 100000} {
			for ranks[0].Send(1, &small, big[:n]) != transport.Sent {
				ranks[1].Poll(counting)
			}
		}
		ranks[0].SendFrom(1, &data, big, 1)
		for got < 4 || sender.completed == 0 || counting.placed == 0 {
			ranks[0].Poll(sender)
			ranks[1].Poll(counting)
		}
		got, sender.completed, counting.placed = 0, 0, 0
		done++
	}
	for range 20 {
		round()
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.Gosched()
			}
		}
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const rounds = 500
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > rounds/10 {
		t.Fatalf("%d allocations in %d rounds of five messages", n, rounds)
	}
}

// counter is a sink that does not allocate.
type counter struct {
	*rank
	completed, placed int
}

func (c *counter) Complete(uint64, error)        { c.completed++ }
func (c *counter) Placed(int, *transport.Header) { c.placed++ }

// A real process is killed in the middle of a transfer.
func TestPeerKilled(t *testing.T) {
	r := openRank(t, Config{Rank: 0, Size: 2})
	introduce(t, []*rank{r})
	r.Provider.cfg.Job, r.Provider.job = "bench.0", "bench.0.0" // as the echo has it
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoVariable+"="+string(r.Address()))
	orders, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	r.Connect(1, []byte(strings.TrimSpace(address)))
	send(t, []*rank{r}, 0, 1, transport.Header{Kind: kindEager}, []byte("hello"))
	src := make([]byte, 64<<20)
	if o := r.SendFrom(1, &transport.Header{Kind: transport.Data, Token: 1, Bytes: 64 << 20}, src, 3); o != transport.Sent {
		t.Fatal(o)
	}
	killed := time.Now()
	cmd.Process.Kill()
	pump(t, []*rank{r}, "loss", func() bool { return r.lost[1] != nil })
	if took := time.Since(killed); took > 5*time.Second {
		t.Fatalf("noticed after %v", took)
	}
	if r.completed[3] == nil {
		t.Fatal("the transfer did not fail")
	}
	io.WriteString(orders, "")
}
