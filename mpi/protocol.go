package mpi

import (
	"math/bits"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The message protocol.
//
//	eager        Eager(payload)                                small, credit left
//	rendezvous   RTS → CTS → Data                              large, copied by the network
//	             RTS(key) → pull → FIN                         large, memory can be pulled
//	taking back  Retract → Retracted                           a send given up before it was matched
//
// Eager messages that find no receive are copied and kept. What one peer may
// have in that state is bounded by credit, which the receiver returns as it
// consumes them; a sender without credit falls back to RTS, so neither side's memory
// grows with a slow receiver.
const (
	kindData      = transport.Data
	kindEager     = transport.Data + 1
	kindRTS       = transport.Data + 2 // Token: sender's op; payload: key of exposed memory or nothing
	kindCTS       = transport.Data + 3 // Token: sender's op, Aux: receiver's op, Bytes: wanted
	kindFIN       = transport.Data + 4 // Token: sender's op: pulled
	kindCredit    = transport.Data + 5 // Aux: bytes
	kindRetract   = transport.Data + 6 // Token: sender's op (at the sender)
	kindRetracted = transport.Data + 7 // Token: sender's op
	kindRevoke    = transport.Data + 8 // Context
	kindShrink    = transport.Data + 9
	kindWindow    = transport.Data + 10 // one-sided operations on windows, window.go
)

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
	if cost := n + transport.EnvelopeBytes; (n < p.caps.RendezvousBytes || n == 0) && n <= p.caps.EagerBytes && cost <= p.credit && !o.exposed {
		out := p.provider.Send(p.rank, h, o.buf)
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
	if p.memory != nil && n >= p.caps.PullBytes && n > 0 {
		if !o.exposed {
			o.key, o.exposed = p.memory.Expose(p.rank, o.buf)
		}
		if o.exposed {
			key = o.key[:]
		}
	}
	out := p.provider.Send(p.rank, h, key)
	switch out {
	case transport.Sent:
		o.phase = phaseOffered
	case transport.Gone:
		e.withdraw(p, o)
		e.finish(o, e.gone(p))
	}
	return out
}

// startRecv begins a receive. The op may be finished when it returns.
func (e *engine) startRecv(c *Comm, buf []byte, src, tag int) *op {
	o := e.ops.get()
	o.kind, o.comm, o.buf, o.peer = opRecv, c, buf, -1
	o.env = c.envelope(src, tag)
	if err := e.broken(c); err != nil {
		e.finish(o, err)
		return o
	}
	if a := e.match.find(o.env); a != nil {
		e.match.release(a)
		e.receive(o, a)
		return o
	}
	if o.env.source >= 0 {
		if p := e.peers[o.env.source]; p != nil && p.lost != nil {
			e.finish(o, p.lost)
			return o
		}
	} else if c.unacked > 0 {
		e.finish(o, e.lastLoss(c))
		return o
	}
	o.phase = phasePosted
	e.match.post(o)
	return o
}

// receive gives a held message to a receive.
func (e *engine) receive(o *op, a *arrival) {
	switch {
	case a.sender != nil:
		e.deliver(o, a.env, a.sender.buf, a.bytes)
		e.finish(a.sender, nil)
	case a.token != 0:
		e.begin(o, a.env, a.bytes, a.token, a.key)
	default:
		e.deliver(o, a.env, a.payload, a.bytes)
		e.consumed(int(a.env.source), a.bytes)
	}
	e.recycle(a)
}

// deliver completes a receive with a whole message.
func (e *engine) deliver(o *op, v envelope, payload []byte, n int) {
	o.peer = v.source
	o.status = Status{Source: o.comm.RankOf(int(v.source)), Tag: int(v.tag), Bytes: n}
	copy(o.buf, payload)
	if n > len(o.buf) {
		e.finish(o, ErrTruncated)
		return
	}
	e.finish(o, nil)
}

// begin starts to fetch a message that was announced by RTS.
func (e *engine) begin(o *op, v envelope, n int, token uint64, key []byte) {
	o.peer = v.source
	o.sender = token
	o.status = Status{Source: o.comm.RankOf(int(v.source)), Tag: int(v.tag), Bytes: n}
	if n > len(o.buf) {
		o.err = ErrTruncated
	}
	o.phase = phaseMoving
	p := e.peer(int(v.source))
	if p.lost != nil {
		e.finish(o, p.lost)
		return
	}
	if len(key) == len(o.key) && p.memory != nil {
		copy(o.key[:], key)
		if !p.out.empty() || e.pull(p, o) == transport.Full {
			e.enqueue(p, parcel{step: stepPull, o: o, gen: o.gen})
		}
		return
	}
	e.control(p, transport.Header{Kind: kindCTS, Token: token, Aux: o.token(), Bytes: uint64(min(n, len(o.buf)))})
}

func (e *engine) pull(p *peer, o *op) transport.Outcome {
	out := p.memory.Pull(p.rank, transport.Key(o.key), o.buf[:min(o.status.Bytes, len(o.buf))], o.token())
	switch out {
	case transport.Sent:
		o.busy = true
	case transport.Gone:
		e.finish(o, e.gone(p))
	}
	return out
}

// push moves the payload of a send that the receiver has cleared.
func (e *engine) push(p *peer, o *op) transport.Outcome {
	e.hdr = transport.Header{Kind: kindData, Context: o.env.context, Tag: o.env.tag, Bytes: uint64(o.status.Bytes), Token: o.sender}
	out := p.provider.SendFrom(p.rank, &e.hdr, o.buf[:o.status.Bytes], o.token())
	switch out {
	case transport.Sent:
		o.busy = true
	case transport.Gone:
		e.finish(o, e.gone(p))
	}
	return out
}

// consumed returns credit for an eager message that has left the engine.
func (e *engine) consumed(source, n int) {
	if source == e.rank {
		return
	}
	p := e.peer(source)
	p.owed += n + transport.EnvelopeBytes
	if p.owed >= p.caps.CreditBytes/2 && p.lost == nil {
		owed := p.owed
		p.owed = 0
		e.control(p, transport.Header{Kind: kindCredit, Aux: uint64(owed)})
	}
}

// control sends a message of the protocol's own.
func (e *engine) control(p *peer, h transport.Header) { e.controlWith(p, h, nil) }

// controlWith is control with a payload, which the engine keeps if it cannot
// leave at once.
func (e *engine) controlWith(p *peer, h transport.Header, payload []byte) {
	if p.lost != nil {
		return
	}
	if p.out.empty() {
		e.hdr = h
		if p.provider.Send(p.rank, &e.hdr, payload) != transport.Full {
			return
		}
	}
	e.enqueue(p, parcel{step: stepControl, h: h, more: payload})
}

// Message implements transport.Sink.
func (e *engine) Message(rank int, h *transport.Header, payload []byte) {
	v := envelope{context: h.Context, source: int32(rank), tag: h.Tag}
	switch h.Kind {
	case kindEager:
		if o := e.claim(v); o != nil {
			e.deliver(o, v, payload, int(h.Bytes))
			e.consumed(rank, int(h.Bytes))
			return
		}
		a := e.pool.arrival()
		a.env, a.bytes = v, int(h.Bytes)
		a.payload = e.pool.buffer(len(payload))
		copy(a.payload, payload)
		e.hold(a)
	case kindRTS:
		if o := e.claim(v); o != nil {
			e.begin(o, v, int(h.Bytes), h.Token, payload)
			return
		}
		a := e.pool.arrival()
		a.env, a.bytes, a.token = v, int(h.Bytes), h.Token
		if len(payload) > 0 {
			a.payload = e.pool.buffer(len(payload))
			copy(a.payload, payload)
			a.key = a.payload
		}
		e.hold(a)
	case kindCTS:
		o := e.ops.find(h.Token)
		if o == nil || o.kind != opSend || int(o.peer) != rank || o.phase != phaseOffered {
			return
		}
		p := e.peer(rank)
		o.phase, o.sender, o.err = phaseMoving, h.Aux, nil
		o.status.Bytes = min(int(h.Bytes), len(o.buf))
		e.withdraw(p, o)
		if !p.out.empty() || e.push(p, o) == transport.Full {
			e.enqueue(p, parcel{step: stepPush, o: o, gen: o.gen})
		}
	case kindFIN:
		o := e.ops.find(h.Token)
		if o == nil || o.kind != opSend || int(o.peer) != rank || o.phase != phaseOffered {
			return
		}
		o.phase, o.err = phaseMoving, nil
		e.reclaim(o)
	case kindCredit:
		p := e.peer(rank)
		p.credit = min(p.credit+int(min(h.Aux, uint64(p.caps.CreditBytes))), p.caps.CreditBytes)
	case kindRevoke:
		e.revokeContext(h.Context)
	case kindShrink:
		e.shrinkMessage(rank, h, payload)
	case kindRetract:
		e.retracted(rank, h.Token)
	case kindRetracted:
		if o := e.ops.find(h.Token); o != nil && o.retract && int(o.peer) == rank && o.phase == phaseOffered {
			o.phase = phaseMoving
			e.reclaim(o)
		}
	default:
		if f := e.handlers[h.Kind]; f != nil {
			f(rank, h, payload)
		} else {
			e.log.Warn("message of unknown kind dropped", "kind", h.Kind, "rank", rank)
		}
	}
}

// hold keeps a message that no receive has asked for yet.
func (e *engine) hold(a *arrival) {
	if c := e.comms[a.env.context]; c != nil && c.revoked.Load() || e.doomed[a.env.context] {
		e.drop(a)
		return
	}
	e.match.hold(a)
	e.sighted()
}

// discard drops a held message and gives back what it holds.
func (e *engine) discard(a *arrival) {
	e.match.release(a)
	e.drop(a)
}

func (e *engine) drop(a *arrival) {
	switch {
	case a.sender != nil:
		e.finish(a.sender, ErrRevoked)
	case a.token != 0:
		e.control(e.peer(int(a.env.source)), transport.Header{Kind: kindRetracted, Token: a.token})
	default:
		e.consumed(int(a.env.source), a.bytes)
	}
	e.recycle(a)
}

func (e *engine) recycle(a *arrival) {
	e.pool.giveBuffer(a.payload)
	e.pool.giveArrival(a)
}

// retracted forgets an announced message at its sender's wish, unless a
// receive has taken it already.
func (e *engine) retracted(rank int, token uint64) {
	for a := e.match.first; a != nil; a = a.seqNext {
		if a.token == token && int(a.env.source) == rank {
			e.discard(a)
			return
		}
	}
}

// reclaim finishes a send whose exposed memory is no longer needed, as soon
// as the peer cannot be reading it any more.
func (e *engine) reclaim(o *op) {
	p := e.peer(int(o.peer))
	if o.exposed && p.lost == nil && !p.memory.Withdraw(p.rank, transport.Key(o.key)) {
		e.unread = append(e.unread, o)
		return
	}
	o.exposed = false
	e.finish(o, o.err)
}

// withdraw takes exposed memory back that nobody has been told of.
func (e *engine) withdraw(p *peer, o *op) {
	if o.exposed {
		p.memory.Withdraw(p.rank, transport.Key(o.key))
		o.exposed = false
	}
}

// Place implements transport.Sink.
func (e *engine) Place(rank int, h *transport.Header, offsetBytes, sizeBytes int) []byte {
	o := e.ops.find(h.Token)
	if o == nil || o.kind != opRecv || int(o.peer) != rank || o.phase != phaseMoving {
		return nil
	}
	end := min(sizeBytes, len(o.buf))
	if offsetBytes >= end {
		return nil
	}
	return o.buf[offsetBytes:end]
}

// Placed implements transport.Sink.
func (e *engine) Placed(rank int, h *transport.Header) {
	o := e.ops.find(h.Token)
	if o != nil && o.kind == opRecv && int(o.peer) == rank && o.phase == phaseMoving {
		e.finish(o, o.err)
	}
}

// Complete implements transport.Sink.
func (e *engine) Complete(token uint64, err error) {
	o := e.ops.find(token)
	if o == nil || !o.busy {
		return
	}
	o.busy = false
	p := e.peer(int(o.peer))
	if o.kind == opRecv {
		// Also after an abandoned pull: the sender's memory is its own again.
		e.control(p, transport.Header{Kind: kindFIN, Token: o.sender})
	}
	switch {
	case err == nil || o.err != nil:
		err = o.err
	case p.lost != nil:
		err = p.lost
	}
	e.finish(o, err)
}

// sendSelf is a message from this rank to itself: copied to a waiting
// receive, or held by reference until one comes.
func (e *engine) sendSelf(o *op) {
	if r := e.claim(o.env); r != nil {
		e.deliver(r, o.env, o.buf, len(o.buf))
		e.finish(o, nil)
		return
	}
	a := e.pool.arrival()
	a.env, a.bytes = o.env, len(o.buf)
	if len(o.buf) <= selfEagerBytes {
		a.payload = e.pool.buffer(len(o.buf))
		copy(a.payload, o.buf)
		e.finish(o, nil)
	} else {
		a.sender = o
		o.phase = phaseOffered
	}
	e.hold(a)
}

// selfEagerBytes is what a rank may send to itself without a receive waiting.
const selfEagerBytes = 64 << 10

// finish makes an op's outcome final and wakes whoever waits for it.
func (e *engine) finish(o *op, err error) {
	o.phase, o.err = phaseFinished, err
	if o.waiter != nil {
		o.waiter.signal()
	}
	if o.done != nil {
		close(o.done)
		e.watched--
	}
	if o.gaveUp {
		e.ops.put(o)
	}
	e.nudge()
}

// bufferPool keeps the memory of unexpected messages, by powers of two.
type bufferPool struct {
	free     [40][][]byte
	arrivals *arrival
}

const keepBuffers = 64 // of each size

func (b *bufferPool) buffer(n int) []byte {
	if n == 0 {
		return nil
	}
	class := bits.Len(uint(n - 1))
	if f := b.free[class]; len(f) > 0 {
		buf := f[len(f)-1]
		b.free[class] = f[:len(f)-1]
		return buf[:n]
	}
	return make([]byte, n, 1<<class)
}

func (b *bufferPool) giveBuffer(buf []byte) {
	if cap(buf) == 0 {
		return
	}
	class := bits.Len(uint(cap(buf) - 1))
	if len(b.free[class]) < keepBuffers {
		b.free[class] = append(b.free[class], buf)
	}
}

func (b *bufferPool) arrival() *arrival {
	a := b.arrivals
	if a == nil {
		return new(arrival)
	}
	b.arrivals = a.seqNext
	a.seqNext = nil
	return a
}

func (b *bufferPool) giveArrival(a *arrival) {
	*a = arrival{seqNext: b.arrivals}
	b.arrivals = a
}
