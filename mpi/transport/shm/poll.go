package shm

import (
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

const (
	// drainCells bounds what one Poll takes from one peer.
	drainCells = 64
	// hotPeers are looked at by every Poll: those that sent last.
	hotPeers = 8
	// sweepPeers is how many of the other peers each Poll looks at besides, in turn.
	sweepPeers = 4
)

// done is a completion to be reported by the next Poll.
type done struct {
	op  uint64
	err error
}

func (p *Provider) complete(op uint64, err error) { p.dones = append(p.dones, done{op, err}) }

// Poll takes what has arrived, sends what waits for room and copies a chunk of
// the transfers under way. With nothing to do it reads one cache line for each
// of the few peers that sent last and for some of the others, so that many idle
// peers cost no more than a few.
func (p *Provider) Poll(s transport.Sink) int {
	p.polls++
	n := 0
	if p.news.fresh.Load() {
		n += p.hear()
	}
	for i := range p.hot {
		if ep := p.hot[i]; ep != nil && ep.state == up {
			n += ep.drain(s)
		}
	}
	if p.sweepAll || p.hotCount < len(p.live) {
		n += p.sweep(s)
	}
	if len(p.ailing) > 0 {
		n += p.bury(s)
	}
	if p.streams > 0 {
		for _, ep := range p.live {
			if len(ep.out.streams) > 0 {
				n += ep.push()
			}
		}
	}
	if len(p.pulls)+len(p.helps) > 0 {
		n += p.transfer(s)
	}
	if len(p.dones) > 0 {
		n += p.report(s)
	}
	p.calm()
	return n
}

// calm lets senders go without fences again, some time after this rank has slept.
func (p *Provider) calm() {
	if p.polls&1023 == 0 {
		p.bell.calm(p.polls)
	}
}

// sweep drains peers that are not hot: all of them after Arm has seen an
// arrival, else the next few.
func (p *Provider) sweep(s transport.Sink) (n int) {
	look := min(sweepPeers, len(p.live))
	if p.sweepAll {
		p.sweepAll, look = false, len(p.live)
	}
	for range look {
		if p.cursor >= len(p.live) {
			p.cursor = 0
		}
		ep := p.live[p.cursor]
		p.cursor++
		if ep.hot || ep.state != up {
			continue
		}
		if got := ep.drain(s); got > 0 {
			n += got
			p.warm(ep)
		}
	}
	return n
}

// warm makes a peer hot in the place of another.
func (p *Provider) warm(ep *endpoint) {
	if ep.hot || ep.state != up {
		return
	}
	at := slices.Index(p.hot[:], nil)
	if at < 0 {
		at = p.victim % hotPeers
		p.victim++
		p.cool(p.hot[at])
	}
	p.hot[at], ep.hot = ep, true
	p.hotCount++
}

// cool is the opposite.
func (p *Provider) cool(ep *endpoint) {
	if at := slices.Index(p.hot[:], ep); at >= 0 {
		p.hot[at], ep.hot = nil, false
		p.hotCount--
	}
}

// drain hands over what a peer has sent.
func (ep *endpoint) drain(s transport.Sink) (n int) {
	if ep.reading {
		return 0
	}
	in := &ep.in
	w0, ok := ep.look()
	if !ok {
		if ep.hungup {
			ep.fail(errHangup)
		}
		return 0
	}
	ep.reading = true
	for ok && n < drainCells {
		if err := ep.take(s, &in.cells[in.next&cellMask], w0); err != nil {
			ep.reading = false
			ep.fail(fmt.Errorf("rank %d, message %d: %w", ep.rank, in.next, err))
			return n + 1
		}
		n++
		if in.parts == 0 {
			ep.advance()
		}
		if ep.state != up { // detached by the sink
			break
		}
		w0, ok = ep.look()
	}
	ep.reading = false
	if in.want.Load() != 0 && in.next != in.credited {
		ep.giveCredit()
	}
	return n
}

// take handles one cell.
func (ep *endpoint) take(s transport.Sink, c *cell, w0 uint64) error {
	h := &ep.in.header
	kind, inline := cellKind(w0), cellInline(w0)
	var payload []byte
	switch f := cellForm(w0); f {
	case formShort:
		if inline > shortBytes {
			return fmt.Errorf("%d bytes in a cell: %w", inline, errMalformed)
		}
		w1 := c[1]
		*h = transport.Header{Kind: kind, Context: uint32(w1), Tag: int32(w1 >> 32), Bytes: uint64(inline)}
		payload = c.bytes(2, inline)
	case formFull:
		if inline > fullBytes {
			return fmt.Errorf("%d bytes behind a header: %w", inline, errMalformed)
		}
		c.header(kind, h)
		payload = c.bytes(5, inline)
	case formRing:
		var err error
		if payload, err = ep.in.ringPayload(c); err != nil {
			return fmt.Errorf("%w: %w", err, errMalformed)
		}
		c.header(kind, h)
		ep.in.bytes += len(payload)
	case formRun:
		return ep.handOver(s, c, w0)
	case formOpen:
		return ep.openArrival(c, kind)
	case formChunk:
		return ep.arrive(s, c)
	case formAbort:
		if !ep.in.stream.open {
			return fmt.Errorf("the end of a payload that has not begun: %w", errMalformed)
		}
		ep.in.stream = arrival{}
		return nil
	case formHelp:
		return ep.help(c)
	default:
		return fmt.Errorf("form %d: %w", f, errMalformed)
	}
	if kind != transport.Data {
		s.Message(ep.rank, h, payload)
	} else if place(s, ep.rank, h, 0, len(payload), payload) {
		s.Placed(ep.rank, h)
	}
	return nil
}

// report hands over completions.
func (p *Provider) report(s transport.Sink) (n int) {
	for i := 0; i < len(p.dones); i++ { // the sink may cause more
		d := p.dones[i]
		s.Complete(d.op, d.err)
		n++
	}
	clear(p.dones)
	p.dones = p.dones[:0]
	return n
}

// Arm shows the peers that this rank is about to sleep and looks once more.
func (p *Provider) Arm() (ready bool) {
	p.bell.arm(p.polls)
	ready = p.pending()
	p.bell.asleep = !ready
	return ready
}

// Disarm shows the peers that this rank polls.
func (p *Provider) Disarm() { p.bell.disarm() }

// pending reports whether a Poll would find something to do.
func (p *Provider) pending() bool {
	if p.news.fresh.Load() || len(p.dones) > 0 || p.transferable() || slices.ContainsFunc(p.ailing, (*endpoint).buriable) ||
		slices.ContainsFunc(p.awaited, (*exposure).returned) { // the peer may have rung before the bell was armed
		return true
	}
	for _, ep := range p.live {
		if ep.state != up {
			continue
		}
		if ep.reading || ep.hungup || ep.arrived() {
			p.sweepAll = true
			return true
		}
		if ep.out.blocked {
			ep.out.want.Store(1) // the peer may have cleared an older one meanwhile
			if ep.refresh() {
				ep.out.blocked = false
				return true
			}
		}
	}
	return false
}
