package mpi

import (
	"context"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The sending side of the protocol.

// send is the blocking send.
func (e *engine) send(ctx context.Context, c *Comm, buf []byte, dst, tag int) error {
	e.mu.Lock()
	e.calls++
	if e.sendNow(c, buf, int(c.group[dst]), tag) {
		e.mu.Unlock()
		return nil
	}
	o := e.startSend(c, buf, dst, tag)
	_, err := e.finishWait(ctx, o)
	e.mu.Unlock()
	return err
}

// sendrecv sends first where the message can leave at once, the common case: then only the receive is under way. The lock
// is held from the send to the receive, so no message of another call comes between.
func (e *engine) sendrecv(ctx context.Context, c *Comm, send []byte, dst, sendTag int, recv []byte, src, recvTag int) (Status, error) {
	if dst != ProcNull && src != ProcNull {
		e.mu.Lock()
		e.calls++
		if e.sendNow(c, send, int(c.group[dst]), sendTag) {
			s, err := e.receiveNext(ctx, c, recv, src, recvTag)
			e.mu.Unlock()
			return s, err
		}
		e.mu.Unlock()
	}
	return bothWays(ctx, c, send, dst, sendTag, recv, src, recvTag)
}

func (e *engine) isend(c *Comm, buf []byte, dst, tag int) Request {
	e.mu.Lock()
	e.calls++
	if e.sendNow(c, buf, int(c.group[dst]), tag) {
		e.mu.Unlock()
		return Request{o: sent}
	}
	o := e.startSend(c, buf, dst, tag)
	r := Request{o: o, gen: o.gen}
	e.mu.Unlock()
	return r
}

// sendNow sends a small message to a peer with an empty outbox and credit
// left, the common case: one call of the provider, and nothing to remember.
func (e *engine) sendNow(c *Comm, buf []byte, world, tag int) bool {
	p := e.peers[world]
	n := len(buf)
	if p == nil || !p.out.empty() || n >= p.instantBytes || n+transport.EnvelopeBytes > p.credit || !c.sound() {
		return false
	}
	h := &e.eager
	h.Context, h.Tag, h.Bytes = c.context, int32(tag), uint64(n)
	if p.provider.Send(world, h, buf) != transport.Sent {
		return false
	}
	p.credit -= n + transport.EnvelopeBytes
	return true
}

// startSend begins a send. The op may be finished when it returns.
func (e *engine) startSend(c *Comm, buf []byte, dst, tag int) *op {
	o := e.ops.get()
	o.kind, o.comm, o.buf, o.peer = opSend, c, buf, c.group[dst]
	o.env = envelope{context: c.context, source: int32(e.rank), tag: int32(tag)}
	if err := e.broken(c); err != nil {
		e.finish(o, err)
		return o
	}
	if int(o.peer) == e.rank {
		e.sendSelf(o)
		return o
	}
	p := e.peer(int(o.peer))
	switch {
	case p.lost != nil:
		e.finish(o, p.lost)
	case !p.out.empty():
		e.enqueue(p, parcel{step: stepOffer, o: o, gen: o.gen})
	default:
		if e.offer(p, o) == transport.Full {
			e.enqueue(p, parcel{step: stepOffer, o: o, gen: o.gen})
		}
	}
	return o
}

// offer makes the first move of a send: the message itself, or RTS.
func (e *engine) offer(p *peer, o *op) transport.Outcome {
	n := len(o.buf)
	h := &e.hdr
	*h = transport.Header{Kind: kindEager, Context: o.env.context, Tag: o.env.tag, Bytes: uint64(n)}
	if p.memory != nil && n >= p.caps.PullBytes && n > 0 && !o.exposed {
		o.key, o.exposed = p.memory.Expose(p.rank, o.buf)
	}
	if cost := n + transport.EnvelopeBytes; (n < p.caps.RendezvousBytes || n == 0) && n <= p.caps.EagerBytes && cost <= p.credit && !o.exposed {
		out := e.outcome(p, p.provider.Send(p.rank, h, o.buf))
		switch out {
		case transport.Sent:
			p.credit -= cost
			e.finish(o, nil)
		case transport.Gone:
			e.finish(o, e.gone(p))
		}
		return out
	}
	h.Kind, h.Token = kindRTS, o.token()
	var key []byte
	if o.exposed {
		key = o.key[:]
	}
	out := e.outcome(p, p.provider.Send(p.rank, h, key))
	switch out {
	case transport.Sent:
		o.phase = phaseOffered
	case transport.Gone:
		e.withdraw(p, o)
		e.finish(o, e.gone(p))
	}
	return out
}

// push moves the payload of a send that the receiver has cleared.
func (e *engine) push(p *peer, o *op) transport.Outcome {
	e.hdr = transport.Header{Kind: kindData, Context: o.env.context, Tag: o.env.tag, Bytes: uint64(o.bytes), Token: o.sender}
	out := e.outcome(p, p.provider.SendFrom(p.rank, &e.hdr, o.buf[:o.bytes], o.token()))
	switch out {
	case transport.Sent:
		o.busy = true
	case transport.Gone:
		e.finish(o, e.gone(p))
	}
	return out
}

// reclaim finishes a send whose exposed memory is no longer needed, as soon
// as the peer cannot be reading it any more.
func (e *engine) reclaim(o *op) {
	p := e.peer(int(o.peer))
	if o.exposed && (p.lost == nil || e.closed) && !p.memory.Withdraw(p.rank, o.key) {
		if !e.closed { // Close ends it once the provider is closed
			e.unread = append(e.unread, o)
		}
		return
	}
	o.exposed = false
	e.finish(o, o.err)
}

// withdraw takes back exposed memory that the peer does not read, because it has not been told of it, or has asked for the data
// instead. It reports false if the peer is reading it all the same.
func (e *engine) withdraw(p *peer, o *op) bool {
	if o.exposed && !p.memory.Withdraw(p.rank, o.key) {
		return false
	}
	o.exposed = false
	return true
}

const (
	// selfEagerBytes is the longest message that a rank may send to itself without a receive waiting.
	selfEagerBytes = 64 << 10
	// selfCreditBytes bounds all such messages that wait, counting EnvelopeBytes for each, as credit bounds those of peers.
	selfCreditBytes = 4 << 20
)

// sendSelf is a message from this rank to itself: copied to a waiting receive, or held until one comes, a short one as a
// copy and a long one by reference.
func (e *engine) sendSelf(o *op) {
	if r := e.claim(o.env); r != nil {
		e.deliverSelf(r, o)
		return
	}
	a := e.pool.arrival()
	a.env, a.bytes = o.env, len(o.buf)
	if cost := len(o.buf) + transport.EnvelopeBytes; len(o.buf) <= selfEagerBytes && e.selfHeld+cost <= selfCreditBytes {
		e.selfHeld += cost
		a.payload = e.pool.buffer(len(o.buf))
		copy(a.payload, o.buf)
		e.finish(o, nil)
	} else {
		a.sender = o
		o.phase = phaseOffered
	}
	e.hold(a)
}

// deliverSelf completes a send of this rank to itself and the receive that takes it. A long copy runs with the lock
// released, as those of providers do. Both operations are matched and busy meanwhile, so nobody gives their buffers
// back, and Close waits.
func (e *engine) deliverSelf(r, s *op) {
	if min(len(r.buf), len(s.buf)) <= selfEagerBytes {
		e.deliver(r, s.env, s.buf, len(s.buf))
		e.finish(s, nil)
		return
	}
	r.peer = s.peer
	for _, o := range []*op{r, s} {
		o.phase, o.busy = phaseMoving, true
	}
	e.copying++
	e.Outside(func() { copy(r.buf, s.buf) })
	e.copying--
	r.busy, s.busy = false, false
	e.deliver(r, s.env, nil, len(s.buf)) // it is there already
	e.finish(s, nil)
	if e.closed {
		e.sighted() // Close waits for the last copy
	}
}
