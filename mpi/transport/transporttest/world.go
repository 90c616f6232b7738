package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// limit bounds each test: what takes longer hangs, on any machine.
const limit = 3 * time.Minute

// kindNote is a message of the tests' own that is not Data.
const kindNote transport.Kind = 40

// world is n ranks under test.
type world struct {
	t       *testing.T
	members []*member
	left    atomic.Int32 // ranks whose function has not returned
	failed  atomic.Bool
	until   time.Time
}

// member is a rank: its provider, and the sink that records what happens.
type member struct {
	Rank
	w    *world
	rank int
	size int

	inbox     []received
	completed map[uint64]error
	placed    map[uint64]int // by token
	places    map[uint64]*placement
	firsts    []uint64 // tokens in the order of their first Place or Placed
	lost      map[int]error
	onMessage func(peer int, h *transport.Header, payload []byte) // instead of inbox
	onLost    func(peer int)                                      // beside lost; may be nil
	fault     error                                               // something the provider must not do
	closed    bool
	after     transport.Sink // takes what arrives once the test's function has returned; nil: the member
}

// received is a message that arrived.
type received struct {
	peer    int
	header  transport.Header
	payload []byte
}

// placement is where a Data payload goes.
type placement struct {
	buf      []byte
	step     int // at most so many bytes at a time; 0: no bound
	discard  int // from this offset on; -1: never
	next     int // offset expected in the next Place
	peer     int
	lastFrom int
}

// open makes a world of n ranks, connected and closed at the end of the test.
func open(t *testing.T, factory Factory, n int) *world {
	t.Helper()
	w := &world{t: t}
	ranks := factory(t, n)
	if len(ranks) != n {
		t.Fatalf("the factory opened %d ranks, asked for %d", len(ranks), n)
	}
	for i, r := range ranks {
		if r.Lock == nil {
			r.Lock = new(sync.Mutex)
		}
		if _, sleeper := r.Provider.(transport.Sleeper); !sleeper && r.Set == nil {
			t.Fatal("the factory gave neither a Set nor a provider that is a Sleeper")
		}
		w.members = append(w.members, &member{
			Rank: r, w: w, rank: i, size: n,
			completed: make(map[uint64]error),
			placed:    make(map[uint64]int),
			places:    make(map[uint64]*placement),
			lost:      make(map[int]error),
		})
	}
	t.Cleanup(w.close)
	for _, m := range w.members {
		m.Lock.Lock()
		for peer, r := range ranks {
			if peer == m.rank {
				continue
			}
			if err := m.Provider.Connect(peer, r.Provider.Address()); err != nil {
				t.Fatalf("rank %d: Connect(%d): %v", m.rank, peer, err)
			}
		}
		m.Lock.Unlock()
	}
	return w
}

func (w *world) close() {
	for _, m := range w.members {
		m.close()
	}
}

func (m *member) close() {
	if m.closed {
		return
	}
	m.closed = true
	begun := time.Now()
	if err := m.Provider.Close(); err != nil {
		m.w.t.Errorf("rank %d: Close: %v", m.rank, err)
	}
	if took := time.Since(begun); took > limit/6 {
		m.w.t.Errorf("rank %d: Close took %v, it may wait for a second", m.rank, took)
	}
}

// each runs f on a goroutine for every rank, with the rank's lock held, and
// keeps every rank polling until all are done.
func (w *world) each(f func(m *member) error) {
	w.t.Helper()
	w.left.Store(int32(len(w.members)))
	w.until = time.Now().Add(limit)
	var all sync.WaitGroup
	for _, m := range w.members {
		all.Go(func() {
			m.Lock.Lock()
			defer m.Lock.Unlock()
			err := f(m)
			if err == nil {
				err = m.fault
			}
			if err != nil && !errors.Is(err, errOthers) {
				w.t.Errorf("rank %d: %v", m.rank, err)
			}
			if err != nil {
				w.failed.Store(true)
			}
			w.left.Add(-1)
			w.wake()
			for w.left.Load() > 0 && !m.closed {
				m.step(m.sink(), func() bool { return w.left.Load() <= 0 })
			}
			if m.fault != nil && err == nil {
				w.t.Errorf("rank %d: %v", m.rank, m.fault)
			}
		})
	}
	all.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// wake ends every rank's sleep.
func (w *world) wake() {
	for _, m := range w.members {
		if s, ok := m.Provider.(transport.Sleeper); ok {
			s.Wake()
		} else {
			m.Set.Wake()
		}
	}
}

var errOthers = errors.New("another rank failed")

func (m *member) sink() transport.Sink {
	if m.after != nil {
		return m.after
	}
	return m
}

// wait polls and sleeps until the condition holds.
func (m *member) wait(what string, cond func() bool) error { return m.waitOn(m, what, cond) }

func (m *member) waitOn(s transport.Sink, what string, cond func() bool) error {
	for !cond() {
		if m.fault != nil {
			return m.fault
		}
		if m.w.failed.Load() {
			return errOthers
		}
		if time.Now().After(m.w.until) {
			return fmt.Errorf("%v passed, waiting for %s; so far %d messages held, %d completions, lost %v",
				limit, what, len(m.inbox), len(m.completed), m.lost)
		}
		m.step(s, cond)
	}
	return m.fault
}

// step polls once, and sleeps when there was nothing and the condition does not
// hold.
func (m *member) step(sink transport.Sink, cond func() bool) {
	if m.Provider.Poll(sink) > 0 || cond() {
		return
	}
	if s, ok := m.Provider.(transport.Sleeper); ok {
		s.Sleep(m.Lock, s.Now().Add(time.Until(m.w.until)))
		return
	}
	if !m.Provider.Arm() {
		m.Lock.Unlock()
		m.Set.Wait(time.Until(m.w.until))
		m.Lock.Lock()
	}
	m.Provider.Disarm()
}

// send offers a message until it is taken.
func (m *member) send(peer int, h transport.Header, payload []byte) error {
	return m.offer(fmt.Sprintf("room to send to rank %d", peer), func() transport.Outcome {
		g := h
		return m.Provider.Send(peer, &g, payload)
	})
}

// sendFrom offers a SendFrom until it is taken.
func (m *member) sendFrom(peer int, h transport.Header, payload []byte, op uint64) error {
	return m.offer(fmt.Sprintf("room to send from memory to rank %d", peer), func() transport.Outcome {
		g := h
		return m.Provider.SendFrom(peer, &g, payload, op)
	})
}

// offer tries until the provider is not full. In between it sleeps as every
// waiter does: room has to wake it.
func (m *member) offer(what string, try func() transport.Outcome) error {
	out := transport.Full
	err := m.wait(what, func() bool {
		if out == transport.Full {
			out = try()
		}
		return out != transport.Full
	})
	if err == nil && out == transport.Gone {
		err = fmt.Errorf("waiting for %s: the peer is gone", what)
	}
	return err
}

// next waits for the next message and removes it.
func (m *member) next(what string) (received, error) {
	if err := m.wait(what, func() bool { return len(m.inbox) > 0 }); err != nil {
		return received{}, err
	}
	r := m.inbox[0]
	m.inbox = m.inbox[1:]
	return r, nil
}

// nextFrom is next for a message that must be the given one.
func (m *member) nextFrom(peer int, want transport.Header, payload []byte) error {
	what := fmt.Sprintf("message with tag %d from rank %d", want.Tag, peer)
	r, err := m.next(what)
	switch {
	case err != nil:
		return err
	case r.peer != peer || r.header != want:
		return fmt.Errorf("%s: got %+v from rank %d, want %+v", what, r.header, r.peer, want)
	case !bytes.Equal(r.payload, payload):
		return fmt.Errorf("%s: payload of %d B: %s", what, len(r.payload), difference(r.payload, payload))
	}
	return nil
}

// done waits for the completion of an operation and forgets it.
func (m *member) done(op uint64) error {
	if err := m.wait(fmt.Sprintf("completion of operation %d", op), func() bool { return m.has(op) }); err != nil {
		return err
	}
	err := m.completed[op]
	delete(m.completed, op)
	return err
}

func (m *member) has(op uint64) bool { _, ok := m.completed[op]; return ok }

func (m *member) breach(format string, args ...any) {
	if m.fault == nil {
		m.fault = fmt.Errorf(format, args...)
	}
}

// Message implements transport.Sink.
func (m *member) Message(peer int, h *transport.Header, payload []byte) {
	if h.Kind == transport.Data {
		m.breach("Message was called for a Data message from rank %d", peer)
	}
	if _, lost := m.lost[peer]; lost {
		m.breach("message from rank %d after it was reported lost", peer)
	}
	if m.onMessage != nil {
		m.onMessage(peer, h, payload)
		return
	}
	m.inbox = append(m.inbox, received{peer, *h, bytes.Clone(payload)})
}

// expect says where the Data message with a token goes.
func (m *member) expect(peer int, token uint64, p *placement) {
	p.peer = peer
	m.places[token] = p
}

// Place implements transport.Sink.
func (m *member) Place(peer int, h *transport.Header, offsetBytes, sizeBytes int) []byte {
	p := m.places[h.Token]
	if p == nil {
		m.breach("Place for token %d from rank %d, which nobody expects", h.Token, peer)
		return nil
	}
	if peer != p.peer {
		m.breach("Place for token %d: rank %d, want %d", h.Token, peer, p.peer)
	}
	if p.next == 0 && p.lastFrom == 0 {
		m.firsts = append(m.firsts, h.Token)
		p.lastFrom = 1
	}
	if sizeBytes != len(p.buf) {
		m.breach("Place for token %d: payload of %d B, want %d", h.Token, sizeBytes, len(p.buf))
		return nil
	}
	// A provider may ask again for bytes it has not read yet, and may have read
	// fewer than it was offered.
	if offsetBytes < 0 || offsetBytes > sizeBytes || offsetBytes > p.next {
		m.breach("Place for token %d: offset %d, at most %d has been offered of %d", h.Token, offsetBytes, p.next, sizeBytes)
		return nil
	}
	if p.discard >= 0 && offsetBytes >= p.discard {
		return nil
	}
	end := sizeBytes
	if p.step > 0 {
		end = min(end, offsetBytes+p.step)
	}
	if p.discard >= 0 {
		end = min(end, p.discard)
	}
	p.next = max(p.next, end)
	return p.buf[offsetBytes:end]
}

// Placed implements transport.Sink.
func (m *member) Placed(peer int, h *transport.Header) {
	p := m.places[h.Token]
	switch {
	case p == nil:
		m.breach("Placed for token %d from rank %d, which nobody expects", h.Token, peer)
		return
	case m.placed[h.Token] > 0:
		m.breach("Placed twice for token %d", h.Token)
	case p.discard >= 0:
		m.breach("Placed for token %d, of which all from byte %d on was discarded", h.Token, p.discard)
	case p.next < len(p.buf):
		m.breach("Placed for token %d when %d of %d B had been offered", h.Token, p.next, len(p.buf))
	}
	if len(p.buf) == 0 {
		m.firsts = append(m.firsts, h.Token)
	}
	m.placed[h.Token]++
}

// arrived waits until the Data message with a token is placed and forgets it.
func (m *member) arrived(token uint64) error {
	if err := m.wait(fmt.Sprintf("data with token %d", token), func() bool { return m.placed[token] > 0 }); err != nil {
		return err
	}
	delete(m.places, token)
	return nil
}

// Complete implements transport.Sink.
func (m *member) Complete(op uint64, err error) {
	if m.has(op) {
		m.breach("operation %d completed twice", op)
	}
	m.completed[op] = err
}

// Lost implements transport.Sink.
func (m *member) Lost(peer int, err error) {
	if _, twice := m.lost[peer]; twice {
		m.breach("rank %d was reported lost twice", peer)
	}
	if err == nil {
		m.breach("rank %d was reported lost without a reason", peer)
	}
	m.lost[peer] = err
	if m.onLost != nil {
		m.onLost(peer)
	}
}

// Outside implements transport.Sink.
func (m *member) Outside(work func()) {
	m.Lock.Unlock()
	work()
	m.Lock.Lock()
}

// pattern is n bytes that depend on a seed.
func pattern(seed uint64, nBytes int) []byte {
	table := noise()
	at := int(seed % noisePeriod)
	return table[at : at+nBytes : at+nBytes]
}

const (
	noisePeriod = 65521
	noiseBytes  = 9 << 20
)

var noise = sync.OnceValue(func() []byte {
	b := make([]byte, noiseBytes+noisePeriod)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
})

func difference(got, want []byte) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d B, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d of %d is %#02x, want %#02x", i, len(got), got[i], want[i])
		}
	}
	return "equal"
}
