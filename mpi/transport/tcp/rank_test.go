package tcp

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

var testSecret = bytes.Repeat([]byte{3}, wire.SecretBytes)

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

// epollSet is a transport.Set that can be slept on.
type epollSet struct {
	fd int
	mu sync.Mutex
	in map[int]bool
}

func newEpollSet(t testing.TB) *epollSet {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &epollSet{fd: fd, in: map[int]bool{}}
}

func (s *epollSet) Watch(fd int, events uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := unix.EPOLL_CTL_ADD
	if s.in[fd] {
		op = unix.EPOLL_CTL_MOD
	}
	s.in[fd] = true
	return unix.EpollCtl(s.fd, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (s *epollSet) Unwatch(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.in, fd)
	unix.EpollCtl(s.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

// sleep waits until a descriptor is ready or the time is over.
func (s *epollSet) sleep(d time.Duration) bool {
	var events [8]unix.EpollEvent
	for end := time.Now().Add(d); ; {
		n, err := unix.EpollWait(s.fd, events[:], int(max(0, time.Until(end))/time.Millisecond))
		if err != unix.EINTR { // by a signal of Go's runtime
			return n > 0
		}
	}
}

// rest sleeps as an engine does, and reports whether there was a reason to wake up.
func (r *rank) rest(d time.Duration) bool {
	defer r.Disarm()
	return r.Arm() || r.set.sleep(d)
}

// watches reports whether a descriptor is in the set.
func (s *epollSet) watches(fd int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in[fd]
}

// message is what arrived: a copy.
type message struct {
	peer    int
	h       transport.Header
	payload []byte
}

// rank is a provider with a sink that records.
type rank struct {
	*Provider
	set       *epollSet
	messages  []message
	placed    []transport.Header
	completed map[uint64]error
	lost      map[int]error
	dst       map[uint64][]byte // by token: memory for Data; none: discard
	asked     int               // calls of Place
	onMessage func(peer int, h *transport.Header, payload []byte)
	window    int              // most bytes Place gives at once; 0: all
	claims    map[int32]uint64 // by tag: the token that dst has memory for
}

func (r *rank) Message(peer int, h *transport.Header, payload []byte) {
	if r.onMessage != nil {
		r.onMessage(peer, h, payload)
		return
	}
	r.messages = append(r.messages, message{peer, *h, bytes.Clone(payload)})
}

func (r *rank) Claim(_ int, h *transport.Header, _ int) bool {
	token, ok := r.claims[h.Tag]
	if ok {
		h.Token = token
	}
	return ok
}

func (r *rank) Place(peer int, h *transport.Header, off, size int) []byte {
	r.asked++
	dst := r.dst[h.Token]
	if off >= len(dst) {
		return nil
	}
	dst = dst[off:]
	if r.window > 0 {
		dst = dst[:min(len(dst), r.window)]
	}
	return dst
}

func (r *rank) Placed(_ int, h *transport.Header) { r.placed = append(r.placed, *h) }

func (r *rank) Complete(op uint64, err error) {
	if _, twice := r.completed[op]; twice {
		panic(fmt.Sprintf("operation %d completed twice", op))
	}
	r.completed[op] = err
}

func (r *rank) Lost(peer int, err error) {
	if _, twice := r.lost[peer]; twice {
		panic(fmt.Sprintf("peer %d lost twice", peer))
	}
	r.lost[peer] = err
}

func (r *rank) Outside(work func()) { work() }

func openRank(t testing.TB, cfg Config) *rank {
	t.Helper()
	set := newEpollSet(t)
	cfg.Set = set
	if cfg.Secret == nil {
		cfg.Secret = testSecret
	}
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	cfg.Job, cfg.ConnectTimeout = "test.0", patience
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return &rank{Provider: p, set: set, completed: map[uint64]error{}, lost: map[int]error{}, dst: map[uint64][]byte{}}
}

// openRanks opens n ranks that know each other.
func openRanks(t testing.TB, n int) []*rank {
	ranks := make([]*rank, n)
	for i := range ranks {
		ranks[i] = openRank(t, Config{Rank: i, Size: n})
	}
	introduce(t, ranks)
	return ranks
}

func introduce(t testing.TB, ranks []*rank) {
	for i, r := range ranks {
		select {
		case <-r.agreed:
		default:
			r.SetLayout([32]byte{})
		}
		for j, other := range ranks {
			if i != j {
				if err := r.Connect(j, other.Address()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// pump polls the ranks in turn until done says so.
func pump(t testing.TB, ranks []*rank, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		events := 0
		for _, r := range ranks {
			events += r.Poll(r)
		}
		if events == 0 {
			ranks[0].rest(time.Millisecond)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// send offers a message until it is taken.
func send(t testing.TB, ranks []*rank, from, to int, h transport.Header, payload []byte) {
	t.Helper()
	pump(t, ranks, fmt.Sprintf("send %d to %d", from, to), func() bool {
		switch o := ranks[from].Send(to, &h, payload); o {
		case transport.Sent:
			return true
		case transport.Gone:
			t.Fatalf("send %d to %d: gone", from, to)
		}
		return false
	})
}

func sendFrom(t testing.TB, ranks []*rank, from, to int, h transport.Header, payload []byte, op uint64) {
	t.Helper()
	pump(t, ranks, fmt.Sprintf("send from %d to %d", from, to), func() bool {
		switch o := ranks[from].SendFrom(to, &h, payload, op); o {
		case transport.Sent:
			return true
		case transport.Gone:
			t.Fatalf("send %d to %d: gone", from, to)
		}
		return false
	})
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func textLog(b *testlog.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func debugLog(b *testlog.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
