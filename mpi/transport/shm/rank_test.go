package shm

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The messages of testRank's small protocol.
const (
	kindEager = transport.Data + 1
	kindRTS   = transport.Data + 2
	kindFIN   = transport.Data + 3
	kindCTS   = transport.Data + 4
)

var testSecret = []byte("known to the ranks of this test!")

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

// numberOf copies.
var numberOf = map[string]int{"one": 1, "two": 2}

// testRank is a rank with a small message engine: eager and pulled messages,
// each received into the buffer that recv gives.
type testRank struct {
	*Provider
	mu sync.Mutex

	into    []byte // where the next message goes
	got     int    // messages received whole
	lastN   int
	held    []heldMessage
	fins    int
	sent    int
	cleared int
	pulled  map[uint64]error
	placed  int
	lost    map[int]error
	op      uint64
	onto    func(peer int, h *transport.Header, payload []byte) // instead of into
}

func openRank(t testing.TB, rank, size int, change func(*Config)) *testRank {
	t.Helper()
	cfg := Config{Rank: rank, Size: size, Job: "test", Secret: testSecret, HandshakeTimeout: patience}
	if change != nil {
		change(&cfg)
	}
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &testRank{Provider: p, pulled: map[uint64]error{}, lost: map[int]error{}}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// openWorld opens ranks of this process and connects them.
func openWorld(t testing.TB, n int, change func(*Config)) []*testRank {
	t.Helper()
	var rs []*testRank
	for i := range n {
		rs = append(rs, openRank(t, i, n, change))
	}
	for i, r := range rs {
		for j, other := range rs {
			if i != j {
				if err := r.Connect(j, other.Address()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return rs
}

func (r *testRank) Message(peer int, h *transport.Header, payload []byte) {
	if r.onto != nil {
		r.onto(peer, h, payload)
		return
	}
	if h.Kind != kindFIN && h.Kind != kindCTS && r.into == nil {
		r.held = append(r.held, heldMessage{peer, *h, bytes.Clone(payload)})
		return
	}
	switch h.Kind {
	case kindEager:
		r.lastN = copy(r.into, payload)
		r.into = nil
		r.got++
	case kindRTS:
		n := int(h.Bytes)
		r.lastN = n
		if len(payload) == 0 {
			r.Send(peer, &transport.Header{Kind: kindCTS}, nil)
			return
		}
		r.op++
		op := r.op
		r.pulled[op] = errPending{peer, h.Token}
		r.Pull(peer, transport.Key(payload), r.into[:n], op)
		r.into = nil
	case kindFIN:
		r.fins++
	case kindCTS:
		r.cleared++
	}
}

// heldMessage came before anybody received it.
type heldMessage struct {
	peer    int
	header  transport.Header
	payload []byte
}

// errPending stands for a pull that is not over.
type errPending struct {
	peer  int
	token uint64
}

func (errPending) Error() string { return "not over" }

func (r *testRank) Complete(op uint64, err error) {
	pending, ok := r.pulled[op].(errPending)
	if ok && err == nil {
		delete(r.pulled, op)
		r.got++
		r.Send(pending.peer, &transport.Header{Kind: kindFIN, Token: pending.token}, nil)
		return
	}
	if op == opSendFrom {
		r.sent++
		return
	}
	r.pulled[op] = err
}

// opSendFrom names the one SendFrom of a testRank.
const opSendFrom = 1 << 40

func (r *testRank) Place(_ int, _ *transport.Header, offset, _ int) []byte { return r.into[offset:] }
func (r *testRank) Placed(int, *transport.Header)                          { r.placed++; r.got++; r.into = nil }
func (r *testRank) Lost(peer int, err error)                               { r.lost[peer] = err }
func (r *testRank) Outside(work func())                                    { r.mu.Unlock(); work(); r.mu.Lock() }

// until polls until the condition holds, giving way to other ranks.
func (r *testRank) until(cond func() bool) error {
	deadline := time.Now().Add(patience)
	for i := 1; !cond(); i++ {
		if r.Poll(r) == 0 && i%64 == 0 {
			r.mu.Unlock()
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			r.mu.Lock()
			if i%4096 == 0 && time.Now().After(deadline) {
				return fmt.Errorf("rank %d waited %v; lost: %v", r.cfg.Rank, patience, r.lost)
			}
		}
	}
	return nil
}

// offer sends one message, waiting for room.
func (r *testRank) offer(peer int, h *transport.Header, payload []byte) error {
	var o transport.Outcome
	err := r.until(func() bool { o = r.Send(peer, h, payload); return o != transport.Full })
	if err == nil && o == transport.Gone {
		err = fmt.Errorf("rank %d is gone: %v", peer, r.lost[peer])
	}
	return err
}

// send sends as the engine does: eagerly, or by letting the peer pull.
func (r *testRank) send(peer int, payload []byte) error {
	if len(payload) < r.habit.rendezvousBytes {
		return r.offer(peer, &transport.Header{Kind: kindEager, Bytes: uint64(len(payload))}, payload)
	}
	if r.habit.pullBytes == neverPull {
		return r.sendData(peer, payload)
	}
	var key transport.Key
	var ok bool
	if err := r.until(func() bool { key, ok = r.Expose(peer, payload); return ok || len(r.lost) > 0 }); err != nil || !ok {
		return fmt.Errorf("memory for rank %d not exposed: %v %v", peer, err, r.lost)
	}
	fins := r.fins
	if err := r.offer(peer, &transport.Header{Kind: kindRTS, Bytes: uint64(len(payload)), Token: 1}, key[:]); err != nil {
		return err
	}
	if err := r.until(func() bool { return r.fins > fins || len(r.lost) > 0 }); err != nil {
		return err
	}
	if !r.Withdraw(peer, key) {
		return fmt.Errorf("pulled memory was not given back")
	}
	return nil
}

// sendData sends by Data messages, after asking.
func (r *testRank) sendData(peer int, payload []byte) error {
	cleared, sent := r.cleared, r.sent
	if err := r.offer(peer, &transport.Header{Kind: kindRTS, Bytes: uint64(len(payload))}, nil); err != nil {
		return err
	}
	if err := r.until(func() bool { return r.cleared > cleared || len(r.lost) > 0 }); err != nil {
		return err
	}
	h := transport.Header{Kind: transport.Data, Bytes: uint64(len(payload))}
	if err := r.until(func() bool { return len(r.lost) > 0 || r.SendFrom(peer, &h, payload, opSendFrom) != transport.Full }); err != nil {
		return err
	}
	return r.until(func() bool { return r.sent > sent || len(r.lost) > 0 })
}

// recv waits for one message into buf.
func (r *testRank) recv(buf []byte) error {
	want := r.got + 1
	r.into = buf[:len(buf):len(buf)]
	if buf == nil {
		r.into = []byte{}
	}
	if len(r.held) > 0 {
		m := r.held[0]
		r.held = r.held[1:]
		r.Message(m.peer, &m.header, m.payload)
	}
	return r.until(func() bool { return r.got >= want || len(r.lost) > 0 })
}

// export makes memory that peers can map.
func (r *testRank) export(sizeBytes int) (fd int, handle, mem []byte, err error) {
	if fd, err = CreateSegment("fisterra-test", sizeBytes, sizeBytes, OrdinaryPages); err != nil {
		return -1, nil, nil, err
	}
	if mem, err = mapSegment(fd, sizeBytes); err == nil {
		handle, err = r.Export(fd, mem)
	}
	return fd, handle, mem, err
}

// ownMemory and mappedMemory are where the long messages of a rank lie.
const (
	ownMemory    = "own"
	mappedMemory = "mapped"
)

// buffer is memory for a long message of this rank, for as long as its process lives.
func (r *testRank) buffer(n int, memory string) ([]byte, error) {
	if memory != mappedMemory {
		return make([]byte, n), nil
	}
	_, _, mem, err := r.export(n)
	return mem, err
}

// pattern fills a buffer so that every byte depends on its place and the seed.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	return b
}

func TestPingPong(t *testing.T) {
	for _, copies := range []string{"one", "two"} {
		t.Run(copies+" copies", func(t *testing.T) {
			rs := openWorld(t, 2, func(cfg *Config) { cfg.Copies = numberOf[copies] })
			sizes := []int{0, 1, 8, 24, 25, 40, 48, 49, 100, 4096, pullFrom - 1,
				pullFrom, eagerBytes, 20000, 24 << 10, 65536, 100001, 1 << 20, 5<<20 + 3}
			var both sync.WaitGroup
			for i, r := range rs {
				both.Go(func() {
					r.mu.Lock()
					defer r.mu.Unlock()
					for _, n := range sizes {
						buf := make([]byte, n)
						for round := range 20 {
							out := pattern(n, byte(round))
							if i == 0 {
								if err := r.send(1, out); err != nil {
									t.Error(err)
									return
								}
							}
							if err := r.recv(buf); err != nil {
								t.Error(err)
								return
							}
							if r.lastN != n || !bytes.Equal(buf, out) {
								t.Errorf("rank %d, %d bytes, round %d: another message came: %d bytes", i, n, round, r.lastN)
								return
							}
							if i == 1 {
								if err := r.send(0, out); err != nil {
									t.Error(err)
									return
								}
							}
						}
					}
				})
			}
			both.Wait()
		})
	}
}
