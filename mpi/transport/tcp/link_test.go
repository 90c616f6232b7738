package tcp

import (
	"bufio"
	"bytes"
	"errors"
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

	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

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

// Where the epoll set cannot have all connections, each is read as before.
func TestNoEpollSet(t *testing.T) {
	r := openRank(t, Config{Rank: 0, Size: 2 + directConns})
	r.cfg.Set = weakSet{r.set, 0, unix.EPOLLIN}
	file, err := unix.MemfdCreate("fisterra-test", unix.MFD_CLOEXEC) // which cannot be in a set
	if err != nil {
		t.Fatal(err)
	}
	r.post(arrival{peer: 1, fd: file})
	var theirs []int
	for peer := 2; peer < 2+directConns; peer++ {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs = append(theirs, fds[1])
		r.post(arrival{peer: peer, fd: fds[0]})
	}
	r.adopt(r)
	last := 1 + directConns
	if r.epoll >= 0 || len(r.conns) != directConns || !errors.Is(r.lost[last], unix.EPERM) {
		t.Fatalf("epoll set %d, %d connections, lost %v", r.epoll, len(r.conns), r.lost)
	}
	for _, fd := range theirs {
		unix.Close(fd)
	}
	for range 1 + directConns {
		r.Poll(r)
	}
	if len(r.conns) != 0 || len(r.lost) != 1+directConns {
		t.Errorf("%d connections after their end, lost %v", len(r.conns), r.lost)
	}
}

// A rank whose connections cannot be watched does not sleep, and loses nothing.
func TestUnwatched(t *testing.T) {
	ranks := connected(t, 2)
	r := ranks[1]
	r.cfg.Set = weakSet{r.set, unix.EPOLLIN, 0}
	for range 2 {
		if !r.Arm() {
			t.Fatal("it may sleep")
		}
		r.Disarm()
	}
	send(t, ranks, 0, 1, transport.Header{Kind: 5}, nil)
	pump(t, ranks, "the message", func() bool { return len(r.messages) == 1 })
	r.cfg.Set = r.set
	if r.Arm() || r.set.sleep(0) {
		t.Error("it may not sleep, though its connection is watched")
	}
}

// A connection that cannot be watched as before, when it has room again, is lost.
func TestUnblockFails(t *testing.T) {
	ranks := connected(t, 2)
	r := ranks[0]
	h := transport.Header{Kind: 5}
	for r.Send(1, &h, pattern(50000, 1)) == transport.Sent {
	}
	c := r.links[1].conn
	if !c.blocked || r.Arm() {
		t.Fatal("the socket takes everything")
	}
	r.cfg.Set = weakSet{r.set, unix.EPOLLIN, 0}
	pump(t, ranks, "room", func() bool { return !c.out.pending() })
	r.Poll(r)
	if !errors.Is(r.lost[1], errWeak) || r.blocked != 0 {
		t.Errorf("lost %v, %d connections blocked", r.lost, r.blocked)
	}
}

// What wakes a rank is watched from its first sleep on until it has been awake for many messages, and again as of the next sleep.
func TestWatchedBySleepers(t *testing.T) {
	for _, peers := range []int{1, directConns + 1} {
		ranks := connected(t, 1+peers)
		r := ranks[0]
		fd := r.links[peers].conn.fd
		if peers > directConns {
			fd = r.epoll
		}
		nap := func(when string) { // it is woken by a message
			if r.Arm() || r.set.sleep(0) || !r.set.watches(fd) {
				t.Fatalf("%d peers, %s: it does not fall asleep, or watches nothing", peers, when)
			}
			if o := ranks[peers].Send(0, &transport.Header{Kind: 5}, nil); o != transport.Sent || !r.set.sleep(patience) {
				t.Fatalf("%d peers, %s: a message, %v, does not wake it", peers, when, o)
			}
			r.Disarm()
		}
		talk := func(messages int) {
			for range messages {
				if o := ranks[peers].Send(0, &transport.Header{Kind: 5}, nil); o != transport.Sent {
					t.Fatal(o)
				}
				for before := len(r.messages); len(r.messages) == before; {
					r.Poll(r)
				}
			}
		}
		if talk(2 * livelyPolls); r.set.watches(fd) {
			t.Fatalf("%d peers: watched before the first sleep", peers)
		}
		nap("at first")
		if talk(livelyPolls / 2); !r.set.watches(fd) {
			t.Errorf("%d peers: not watched any more after a few messages", peers)
		}
		if talk(livelyPolls); r.set.watches(fd) {
			t.Errorf("%d peers: watched still after many", peers)
		}
		nap("after many messages")
	}
}

// The bell that wakes a rank for new connections is silent once they are adopted, whenever that is: else it would wake the rank again and again.
func TestBellIsSilentOnceAdopted(t *testing.T) {
	r := openRanks(t, 2)[0]
	r.links[1].gone = true // so that what arrives is of no use
	rounds := 5000
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var posting sync.WaitGroup
		posting.Go(func() { r.post(arrival{peer: 1, fd: -1}) })
		for r.adopt(r) == 0 && time.Now().Before(end) {
		}
		posting.Wait()
		var count [8]byte
		if n, err := unix.Read(r.bell, count[:]); err != unix.EAGAIN {
			t.Fatalf("%d bytes, %v: it rings for nothing", n, err)
		}
		if rounds--; rounds == 0 {
			return
		}
	}
	t.Fatalf("%d rounds left", rounds)
}

// weakSet fails to watch for some events, and only seems to watch for others.
type weakSet struct {
	transport.Set
	fails, seems uint32
}

var errWeak = errors.New("a weak set")

func (s weakSet) Watch(fd int, events uint32) error {
	switch events {
	case s.fails:
		return errWeak
	case s.seems:
		return nil
	}
	return s.Set.Watch(fd, events)
}

// A sleeping rank is woken by a connection and by a message.
func TestWakesSleeper(t *testing.T) {
	ranks := openRanks(t, 2)
	h := transport.Header{Kind: 5}
	ranks[0].Send(1, &h, nil)
	for i, r := range ranks {
		if !r.set.sleep(patience) {
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
	if !ranks[1].set.sleep(patience) {
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
	}
}

// Neither end of a connection gives up a peer that is silent: that is for the world to do.
func TestSilenceIsNoEnd(t *testing.T) {
	for _, r := range connected(t, 2) {
		for what, option := range map[string][2]int{
			"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
			"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		} {
			if got, err := unix.GetsockoptInt(r.conns[0].fd, option[0], option[1]); got != 0 || err != nil {
				t.Errorf("rank %d: %s is %d, %v", r.cfg.Rank, what, got, err)
			}
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

// Strangers that come before the ranks have agreed, and whose connections have made room for others, hold nothing.
func TestStrangersBeforeTheLayout(t *testing.T) {
	const more = 20
	r := openRank(t, Config{Rank: 0, Size: 2})
	var strangers []net.Conn
	for range r.cfg.Size + 64 + more { // more than Open has slots for
		conn, err := net.Dial("tcp", string(r.Address()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		strangers = append(strangers, conn)
	}
	for _, conn := range strangers[:more] {
		conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("an old connection has not made room within %v", patience)
		}
	}
	pump(t, []*rank{r}, "the end of those hellos", func() bool {
		stacks := make([]byte, 8<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*Provider).self(") <= len(strangers)-more
	})
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
			var log testlog.Buffer
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

// A real process is killed in the middle of a transfer.
func TestPeerKilled(t *testing.T) {
	r := openRank(t, Config{Rank: 0, Size: 2})
	introduce(t, []*rank{r})
	r.Provider.cfg.Job, r.Provider.job = "bench.0", "bench.0.0" // as the echo has it
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoOf("127.0.0.1", string(r.Address())))
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
	cmd.Process.Kill()
	pump(t, []*rank{r}, "loss", func() bool { return r.lost[1] != nil })
	if r.completed[3] == nil {
		t.Fatal("the transfer did not fail")
	}
	io.WriteString(orders, "")
}
