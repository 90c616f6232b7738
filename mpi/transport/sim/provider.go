package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Provider is one rank's end of the fabric. It implements transport.Provider
// and transport.Sleeper.
type Provider struct {
	mailbox
	fabric *Fabric
	rank   int
	opened bool
	dead   atomic.Pointer[ending]
	bell   chan struct{}

	// The world's lock guards what follows.
	gone    bitset // peers that are lost or were detached
	spoken  bitset // peers that something was sent to
	ops     map[uint64]*operation
	barren  int                  // polls without an event since the last sleep
	task                         // virtual time
	exposed map[uint64]*exposure // memory.go; guarded by the mailbox's lock
	keys    uint64
}

// ending is why a provider does nothing any more.
type ending struct{ err error }

var errClosed = errors.New("sim: provider closed")

// operation is memory of the engine's that the fabric may touch.
type operation struct {
	peer int
	sent *message
	pull *pull
}

// pollEvents bounds the work of one Poll.
const pollEvents = 64

// outsideBytes is the size from which a copy is made without the world's lock.
const outsideBytes = 32 << 10

func (p *Provider) init(f *Fabric, rank int) {
	p.fabric, p.rank = f, rank
	p.bell = make(chan struct{}, 1)
	p.calm = sync.NewCond(&p.mu)
}

// Name implements transport.Provider: "sim".
func (p *Provider) Name() string { return "sim" }

// Rank is this provider's rank.
func (p *Provider) Rank() int { return p.rank }

// Fabric is what this provider is an end of.
func (p *Provider) Fabric() *Fabric { return p.fabric }

// Caps implements transport.Provider.
func (p *Provider) Caps() transport.Caps {
	c := &p.fabric.cfg
	return transport.Caps{
		EagerBytes:      c.EagerBytes,
		RendezvousBytes: min(c.RendezvousBytes, c.EagerBytes),
		PullBytes:       c.PullBytes,
		CreditBytes:     c.CreditBytes,
		SizesOnly:       c.SizesOnly,
	}
}

// Address implements transport.Provider.
func (p *Provider) Address() []byte { return strconv.AppendInt([]byte(scheme), int64(p.rank), 10) }

const scheme = "sim:"

// Connect implements transport.Provider. It is called for every pair of ranks
// of large worlds, so it allocates only to complain.
func (p *Provider) Connect(peer int, address []byte) error {
	var digits [20]byte
	own := strconv.AppendInt(digits[:0], int64(peer), 10)
	if n := len(scheme); len(address) > n && string(address[:n]) == scheme && bytes.Equal(address[n:], own) && peer >= 0 && peer < len(p.fabric.ranks) {
		return nil
	}
	return fmt.Errorf("sim: rank %d cannot be reached at %q: on this fabric of %d ranks it would be %q", peer, address, len(p.fabric.ranks), scheme+string(own))
}

// Send implements transport.Provider.
func (p *Provider) Send(peer int, h *transport.Header, payload []byte) transport.Outcome {
	if len(payload) > p.fabric.cfg.EagerBytes {
		panic(fmt.Sprintf("sim: Send of %d B, EagerBytes is %d", len(payload), p.fabric.cfg.EagerBytes))
	}
	m := p.fabric.message()
	m.header, m.charge = *h, transport.EnvelopeBytes+len(payload)
	return p.post(peer, m, payload)
}

// SendFrom implements transport.Provider. The payload is read when the
// receiver polls or, between nodes in virtual time, when it has crossed the network.
func (p *Provider) SendFrom(peer int, h *transport.Header, payload []byte, op uint64) transport.Outcome {
	return p.post(peer, &message{header: *h, charge: transport.EnvelopeBytes, op: op, lent: true}, payload)
}

func (p *Provider) post(peer int, m *message, payload []byte) transport.Outcome {
	f := p.fabric
	if p.dead.Load() != nil || p.gone.has(peer) {
		f.forget(m)
		return transport.Gone
	}
	to := &f.ranks[peer]
	to.mu.Lock()
	l := to.link(p.rank)
	if l.bytes > 0 && l.bytes+m.charge > f.cfg.QueueBytes {
		l.refused = true
		to.mu.Unlock()
		f.forget(m)
		return transport.Full
	}
	l.sent++
	nth := l.sent
	dead := to.dead.Load()
	lost := dead != nil || f.severed(p.rank, peer)
	m.from, m.to, m.size = p, to, len(payload)
	if !lost {
		l.bytes += m.charge
		if f.virtual != nil {
			l.follow(m)
		}
	}
	to.mu.Unlock()
	p.spoken.set(peer)

	switch {
	case m.lent:
		m.data = payload
		p.keep(m.op, &operation{peer: peer, sent: m})
	case !f.carries(len(payload)):
		m.data = f.blank[:len(payload)]
	default:
		m.own = append(m.own[:0], payload...)
		m.data = m.own
	}
	switch {
	case lost:
		if m.lent {
			m.state = lendingAwaited
		}
		if dead != nil && dead.err == errClosed {
			to.hangUp(p.rank, f.now(p), fmt.Errorf("rank %d: %w", peer, ErrHungUp))
		}
	case f.virtual != nil:
		f.virtual.transmit(m)
	default:
		m.due = f.now(p) + f.delay(p.rank, peer, nth)
		to.accept(m)
	}
	return transport.Sent
}

// accept queues a message that reaches this rank at m.due.
func (p *Provider) accept(m *message) {
	p.mu.Lock()
	p.append(p.link(m.from.rank), m)
	due := m.due // it may be delivered and used again as soon as the lock is free
	p.mu.Unlock()
	p.ring(due)
}

// tell queues a note for this rank.
func (p *Provider) tell(due int64, n *note) {
	p.mu.Lock()
	p.schedule(entry{due: due, note: n})
	p.mu.Unlock()
	p.ring(due)
}

func (p *Provider) keep(op uint64, o *operation) {
	if p.ops == nil {
		p.ops = make(map[uint64]*operation)
	}
	p.ops[op] = o
}

// opsWith are the operations with a peer, in the order of their numbers: a run repeats exactly, and a map's order does not.
func (p *Provider) opsWith(peer int) []uint64 {
	var ops []uint64
	for op, o := range p.ops {
		if o.peer == peer {
			ops = append(ops, op)
		}
	}
	slices.Sort(ops)
	return ops
}

// hangUp closes this rank's end of the connection to a peer, once.
func (p *Provider) hangUp(peer int, at int64, err error) {
	to := &p.fabric.ranks[peer]
	to.mu.Lock()
	l := to.link(p.rank)
	first := !l.closed && to.dead.Load() == nil
	l.closed = true
	m := &message{from: p, to: to, hangUp: err, due: at}
	if first && p.fabric.virtual != nil {
		l.follow(m)
	}
	to.mu.Unlock()
	if !first {
		return
	}
	if v := p.fabric.virtual; v != nil {
		v.transmit(m)
		return
	}
	to.accept(m)
}

// linked reports whether anything was ever sent between this rank and a peer.
func (p *Provider) linked(peer int) bool {
	if p.spoken.has(peer) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.links[int32(peer)] != nil
}

// Abandon implements transport.Provider. A message that the receiver has not
// begun to read is not delivered; of one that it has begun to read the rest is
// not, and it is not told Placed.
func (p *Provider) Abandon(op uint64) {
	if o := p.ops[op]; o != nil && p.recall(o, ErrAbandoned) {
		p.tell(p.fabric.now(p), &note{op: op, err: ErrAbandoned})
	}
}

// recall takes the memory of an operation back. It reports false if the completion is on its way already, or will be as soon
// as the chunk that is being read has been.
func (p *Provider) recall(o *operation, err error) bool {
	if o.pull != nil {
		return o.pull.recall(err)
	}
	m := o.sent
	m.to.mu.Lock()
	defer m.to.mu.Unlock()
	switch m.state {
	case lendingIdle, lendingAwaited:
		m.state = lendingOver
		return true
	case lendingRead:
		m.state, m.cause = lendingRecall, err
	}
	return false
}

// Detach implements transport.Provider.
func (p *Provider) Detach(peer int) {
	if p.gone.has(peer) || p.dead.Load() != nil {
		return
	}
	p.gone.set(peer)
	err := fmt.Errorf("sim: rank %d was detached", peer)
	for _, op := range p.opsWith(peer) {
		if p.recall(p.ops[op], err) {
			p.tell(p.fabric.now(p), &note{op: op, err: err})
		}
	}
	if p.linked(peer) {
		p.hangUp(peer, p.fabric.now(p), fmt.Errorf("rank %d: %w", p.rank, ErrHungUp))
	}
}

// die makes this rank do nothing any more, and reports whether it was alive.
func (p *Provider) die(err error) bool {
	if !p.dead.CompareAndSwap(nil, &ending{err}) {
		return false
	}
	if err != errClosed {
		p.tell(p.fabric.now(p), &note{died: err})
	}
	return true
}

// Close implements transport.Provider. It does not wait until messages have left: the fabric takes a copy of the memory that
// is lent to them. It waits only for chunks of this rank's memory that are being read.
func (p *Provider) Close() error {
	killed := !p.die(errClosed)
	f := p.fabric
	for _, o := range p.ops {
		if o.sent != nil {
			o.sent.detach()
		}
	}
	p.ops = nil
	p.mu.Lock()
	for _, x := range p.exposed {
		for x.readers > 0 {
			p.calm.Wait()
		}
	}
	p.exposed = nil
	p.due = nil
	peers := make([]int, 0, len(p.links))
	for from := range p.links {
		peers = append(peers, int(from))
	}
	p.mu.Unlock()
	if killed {
		return nil
	}
	for _, peer := range peers {
		p.spoken.set(peer)
	}
	for peer := range f.ranks {
		if p.spoken.has(peer) && !p.gone.has(peer) && peer != p.rank {
			p.hangUp(peer, f.now(p), fmt.Errorf("rank %d: %w", p.rank, ErrHungUp))
		}
	}
	return nil
}

// detach copies what a message lends, so that its sender can forget it.
func (m *message) detach() {
	to := m.to
	to.mu.Lock()
	defer to.mu.Unlock()
	for m.state == lendingRead || m.state == lendingRecall {
		to.calm.Wait()
	}
	if m.state != lendingIdle {
		return
	}
	if to.fabric.carries(m.size) {
		m.data = append([]byte(nil), m.data...)
	}
	m.state, m.copied = lendingOver, true
}

// Arm implements transport.Provider. The fabric is a Sleeper: nothing becomes
// readable.
func (p *Provider) Arm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nextDue() <= p.fabric.now(p)
}

// Disarm implements transport.Provider.
func (p *Provider) Disarm() {}

// ring ends the rank's sleep because of something that is due at a time.
func (p *Provider) ring(due int64) {
	if v := p.fabric.virtual; v != nil {
		v.notify(p, due)
		return
	}
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// Wake implements transport.Sleeper.
func (p *Provider) Wake() {
	if v := p.fabric.virtual; v != nil {
		v.wake(p)
		return
	}
	p.ring(0)
}

// Now implements transport.Sleeper. In virtual time it counts from the Unix
// epoch.
func (p *Provider) Now() time.Time {
	if p.fabric.virtual != nil {
		return time.Unix(0, p.fabric.now(p))
	}
	return time.Now()
}

// bitset is a set of small numbers.
type bitset []uint64

func (b bitset) has(i int) bool { return i>>6 < len(b) && b[i>>6]>>(i&63)&1 != 0 }

func (b *bitset) set(i int) {
	for i>>6 >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i>>6] |= 1 << (i & 63)
}
