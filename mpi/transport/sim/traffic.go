package sim

// What messages and pulls do to the adapters and processors of a fabric in virtual time.

// adapter is a node's network adapter.
type adapter struct{ send, recv lane }

// lane is one direction of an adapter. free is when it will have served all that has come to it so far, shortFree when all
// short messages.
type lane struct{ free, shortFree int64 }

// serve is when a message that holds the lane for some time gets its turn.
func (l *lane) serve(at, hold int64, queued bool) (start int64) {
	if queued {
		start = max(at, l.free)
		l.free = start + hold
		return start
	}
	start = max(at, l.shortFree)
	l.shortFree = start + hold
	l.free = max(l.free+hold, start+hold) // the long ones wait for it instead
	return start
}

// transmit puts a message on its way.
func (s *schedule) transmit(m *message) {
	p := m.from
	n := s.f.cfg.Network
	link := n.Between(p.rank, m.to.rank)
	at := max(p.clock, s.now, m.due)
	if m.hangUp == nil {
		s.stats.Messages++
		s.stats.Bytes += uint64(m.size)
		p.clock = at + int64(link.Overhead)
		if link == &n.Node && !m.lent {
			p.clock += int64(link.Transfer(m.size))
		}
		at = p.clock
	}
	if link == &n.Node {
		m.due = at + int64(link.Latency)
		m.to.accept(m)
		return
	}
	s.push(event{at: at, kind: eventInject, sent: m})
}

// request puts a pull's request on its way to the owner of the memory.
func (s *schedule) request(x *pull) {
	p := x.reader
	n := s.f.cfg.Network
	link := n.Between(p.rank, x.owner.rank)
	p.clock = max(p.clock, s.now) + int64(link.Overhead)
	s.stats.Messages++
	s.stats.Bytes += uint64(len(x.dst))
	at := p.clock + int64(link.Latency)
	if link == &n.Node {
		p.tell(at, &note{pull: x})
		return
	}
	s.push(event{at: at, kind: eventInject, pull: x})
}

// chargeCopy moves the reader's clock on by the next chunk of a pull, and returns the chunk's length. It reports false if
// other ranks had events to come before the reader's time: it has let those happen, and what they have brought goes first.
func (s *schedule) chargeCopy(x *pull) (length int, ok bool) {
	n := s.f.cfg.Network
	p := x.reader
	left := len(x.dst) - x.offset
	if n.Between(p.rank, x.owner.rank) != &n.Node {
		return left, true
	}
	if p.running && !p.unwound && len(s.queue) > 0 && s.queue[0].at < p.clock {
		s.suspend(p, p.clock)
		return 0, false
	}
	length = min(left, max(copyChunk, len(x.dst)/copyChunks))
	p.clock = max(p.clock, s.now) + int64(n.Node.Transfer(length))
	return length, true
}

// inject lets a payload enter the network at its node's adapter.
func (s *schedule) inject(e event) {
	from, _, size := e.route()
	wire := &s.f.cfg.Network.Wire
	a := &s.nodes[s.f.cfg.Network.NodeOf(from)]
	start := a.send.serve(e.at, wire.hold(size), e.queued())
	s.push(event{at: start + int64(wire.Latency), kind: eventReach, sent: e.sent, pull: e.pull})
}

// reach lets a payload enter the adapter of the node it goes to.
func (s *schedule) reach(e event) {
	_, to, size := e.route()
	wire := &s.f.cfg.Network.Wire
	a := &s.nodes[s.f.cfg.Network.NodeOf(to)]
	// It is served while it comes in: its last byte is through one transfer after its first.
	hold := wire.hold(size)
	start := a.recv.serve(e.at+int64(wire.Transfer(size))-hold, hold, e.queued())
	done := start + hold
	if e.pull != nil {
		e.pull.reader.tell(done, &note{pull: e.pull})
		return
	}
	m := e.sent
	m.due = done
	if m.lent && m.hangUp == nil {
		m.landed(done + int64(wire.Latency))
	}
	m.to.accept(m)
}

// landed takes lent memory into the fabric, since the adapter has read it,
// and completes the send at a time.
func (m *message) landed(acknowledged int64) {
	m.to.mu.Lock()
	open := m.state == lendingIdle
	m.to.mu.Unlock()
	if open {
		m.detach()
		m.from.tell(acknowledged, &note{op: m.op})
	}
}

// acknowledged is when the sender knows that lent memory was read at a time.
func (s *schedule) acknowledged(m *message, at int64) int64 {
	return at + int64(s.f.cfg.Network.Between(m.from.rank, m.to.rank).Latency)
}

// chargeReceive moves the receiver's clock on by what a message costs it.
func (s *schedule) chargeReceive(m *message) {
	n := s.f.cfg.Network
	link := n.Between(m.from.rank, m.to.rank)
	p := m.to
	p.clock = max(p.clock, m.due) + int64(link.Overhead)
	if link == &n.Node {
		p.clock += int64(link.Transfer(m.size))
	}
}

func (s *schedule) push(e event) {
	s.seq++
	e.seq = s.seq
	s.queue.push(e)
}
