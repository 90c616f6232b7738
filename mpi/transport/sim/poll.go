package sim

import (
	"fmt"
	"sync"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Poll implements transport.Provider: it hands over what is due.
func (p *Provider) Poll(s transport.Sink) int {
	events, room := 0, p.fabric.cfg.ChunkBytes
	for events < pollEvents && room > 0 {
		e, ok := p.take(p.fabric.now(p))
		if !ok {
			break
		}
		if e.note != nil {
			events += p.heed(s, e.note, &room)
			continue
		}
		finished := p.receive(s, e.link, &room)
		from := &p.fabric.ranks[e.link.from]
		gone, retry := p.resume(e.link, finished, p.fabric.cfg.QueueBytes)
		if gone != nil {
			p.fabric.forget(gone)
		}
		if retry {
			from.ring(p.fabric.now(p))
		}
		events++
	}
	if v := p.fabric.virtual; v != nil {
		v.polled(p, events)
	}
	return events
}

// heed acts on a note and returns the number of events.
func (p *Provider) heed(s transport.Sink, n *note, room *int) int {
	switch {
	case n.died != nil:
		return p.perish(s, n)
	case n.pull != nil:
		return p.fetch(s, n, room)
	}
	if p.ops[n.op] == nil {
		return 0
	}
	delete(p.ops, n.op)
	s.Complete(n.op, n.err)
	return 1
}

// perish reports to a killed rank that all is lost.
func (p *Provider) perish(s transport.Sink, n *note) int {
	events := 0
	for peer := range p.fabric.ranks {
		if peer == p.rank || p.gone.has(peer) {
			continue
		}
		if !p.release(s, peer, n.died) {
			p.tell(p.fabric.now(p)+int64(time.Microsecond), n)
			return events
		}
		p.gone.set(peer)
		s.Lost(peer, n.died)
		events++
	}
	return events
}

// release completes the operations with a peer that is gone. It reports false if one of them still has to wait for a copy
// that is under way.
func (p *Provider) release(s transport.Sink, peer int, err error) bool {
	calm := true
	for _, op := range p.opsWith(peer) {
		if p.recall(p.ops[op], err) {
			delete(p.ops, op)
			s.Complete(op, err)
		} else {
			calm = false
		}
	}
	return calm
}

// receive delivers the head of a link, or a chunk of it. It reports whether
// the message is finished.
func (p *Provider) receive(s transport.Sink, l *link, room *int) (finished bool) {
	m, from := l.head, int(l.from)
	switch {
	case p.dead.Load() != nil:
		return true
	case p.fabric.severed(p.rank, from):
		p.settle(m, lendingAwaited, nil)
		return true
	case p.gone.has(from):
		p.settle(m, lendingOver, fmt.Errorf("%w: sim: rank %d has detached this rank", transport.ErrGone, p.rank))
		if m.hangUp == nil {
			p.hangUp(from, p.fabric.now(p), fmt.Errorf("rank %d: %w", p.rank, ErrHungUp))
		}
		return true
	case m.hangUp != nil:
		if !p.release(s, from, fmt.Errorf("%w: %w", transport.ErrGone, m.hangUp)) {
			m.due = p.fabric.now(p) + int64(time.Microsecond)
			return false
		}
		p.gone.set(from)
		s.Lost(from, m.hangUp)
		return true
	}
	if m.offset == 0 && p.fabric.virtual != nil {
		p.fabric.virtual.chargeReceive(m)
	}
	if m.header.Kind == transport.Data {
		return p.place(s, m, from, room)
	}
	if m.lent && p.fabric.carries(m.size) {
		whole := make([]byte, m.size)
		if !p.read(m, whole) {
			return true
		}
		m.data = whole
		p.settle(m, lendingOver, nil)
	}
	*room -= m.size
	s.Message(from, &m.header, m.data)
	p.settle(m, lendingOver, nil)
	return true
}

// place moves a payload to where the sink wants it, as far as room allows.
func (p *Provider) place(s transport.Sink, m *message, from int, room *int) (finished bool) {
	if m.lent && p.recalled(m) {
		return true
	}
	for m.offset < m.size {
		if *room <= 0 {
			return false
		}
		dst := s.Place(from, &m.header, m.offset, m.size)
		if dst == nil {
			p.settle(m, lendingOver, nil)
			return true
		}
		n := min(len(dst), m.size-m.offset, *room)
		if n == 0 {
			panic(fmt.Sprintf("sim: Place gave no room for byte %d of %d from rank %d", m.offset, m.size, from))
		}
		if p.fabric.carries(m.size) && !p.read(m, dst[:n]) {
			return true
		}
		if p.dead.Load() != nil || p.gone.has(from) {
			p.settle(m, lendingOver, fmt.Errorf("%w: sim: rank %d has closed its end", transport.ErrGone, p.rank))
			return true
		}
		m.offset += n
		*room -= n
	}
	p.settle(m, lendingOver, nil)
	s.Placed(from, &m.header)
	return true
}

func (p *Provider) recalled(m *message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return m.state == lendingOver && !m.copied
}

// read copies the next len(dst) bytes of a payload. It reports false if the sender took its memory back before or meanwhile.
// It keeps the world's lock: once that is free, the memory that Place gave may be its owner's again.
func (p *Provider) read(m *message, dst []byte) bool {
	if !m.lent {
		copy(dst, m.data[m.offset:])
		return true
	}
	p.mu.Lock()
	src := m.data[m.offset:]
	if m.copied {
		p.mu.Unlock()
		copy(dst, src)
		return true
	}
	if d := m.from.dead.Load(); m.state != lendingIdle || d != nil && d.err != errClosed {
		p.mu.Unlock()
		return false
	}
	m.state = lendingRead
	p.mu.Unlock()
	copy(dst, src)
	p.mu.Lock()
	recalled := m.state == lendingRecall
	m.state = lendingIdle
	if recalled {
		m.state = lendingOver
	}
	p.calm.Broadcast()
	p.mu.Unlock()
	if recalled {
		m.from.tell(p.fabric.now(p), &note{op: m.op, err: m.cause})
	}
	return !recalled
}

// settle sets the state of lent memory that is not being read. lendingOver completes the send with err.
func (p *Provider) settle(m *message, state lending, err error) {
	if !m.lent {
		return
	}
	p.mu.Lock()
	open := m.state == lendingIdle
	if open {
		m.state = state
	}
	p.mu.Unlock()
	if open && state == lendingOver {
		at := p.fabric.now(p)
		if v := p.fabric.virtual; v != nil {
			at = v.acknowledged(m, at)
		}
		m.from.tell(at, &note{op: m.op, err: err})
	}
}

// Sleep implements transport.Sleeper. One goroutine of a rank may sleep at a
// time.
func (p *Provider) Sleep(lock sync.Locker, deadline time.Time) {
	if v := p.fabric.virtual; v != nil {
		v.sleep(p, lock, deadline)
		return
	}
	p.mu.Lock()
	wait := p.nextDue()
	p.mu.Unlock()
	if wait != never {
		wait -= p.fabric.now(p)
	}
	if !deadline.IsZero() {
		wait = min(wait, int64(time.Until(deadline)))
	}
	if wait <= 0 {
		return
	}
	lock.Unlock()
	defer lock.Lock()
	if wait == never {
		<-p.bell
		return
	}
	timer := time.NewTimer(time.Duration(wait))
	defer timer.Stop()
	select {
	case <-p.bell:
	case <-timer.C:
	}
}
