package mpi

import (
	"bytes"
	"errors"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The message protocol.
//
//	eager        Eager(payload)                                small, credit left
//	rendezvous   RTS → CTS → Data                              large, copied by the network
//	             RTS(key) → pull → FIN                         large, memory can be pulled
//	taking back  Retract → Retracted                           a send given up before it was matched
//	             Retract(receive)                              a send given up while its data was moving
//	             RTS → Retracted                               the receiver's communicator is revoked or freed
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
	kindRetract   = transport.Data + 6 // Token: sender's op; Aux: receiver's op, if that got CTS from it
	kindRetracted = transport.Data + 7 // Token: sender's op; Aux: retractedFreed or nothing
	kindRevoke    = transport.Data + 8 // Context
	kindShrink    = transport.Data + 9
	kindWindow    = transport.Data + 10 // one-sided operations on windows, window_message.go
)

// control sends a message of the protocol's own.
func (e *engine) control(p *peer, h transport.Header) { e.controlWith(p, h, nil) }

// controlWith is control with a payload. If the message cannot leave at once, the engine keeps a copy of the payload.
func (e *engine) controlWith(p *peer, h transport.Header, payload []byte) {
	if p.lost != nil {
		return
	}
	if p.out.empty() {
		e.hdr = h
		if e.outcome(p, p.provider.Send(p.rank, &e.hdr, payload)) != transport.Full {
			return
		}
	}
	e.enqueue(p, parcel{step: stepControl, h: h, more: append([]byte(nil), payload...)})
}

// Message implements transport.Sink. An eager message that is as it should be and whose receive waits is the common case, and is
// not looked at twice.
func (e *engine) Message(rank int, h *transport.Header, payload []byte) {
	if h.Kind == kindEager && h.Bytes == uint64(len(payload)) && h.Tag >= 0 {
		v := envelope{context: h.Context, source: int32(rank), tag: h.Tag}
		if o := e.claim(v); o != nil {
			e.deliver(o, v, payload, len(payload))
			e.oweCredit(e.peer(rank), 1, len(payload))
			return
		}
	}
	e.message(rank, h, payload)
}

// Batch implements transport.Batcher: it takes eager messages as long as the first receive of their queue is for them. While
// a wildcard receive or a direct one is posted, it takes none.
func (e *engine) Batch(rank int, h *transport.Header, payloads []byte, strideBytes, count int) (taken int) {
	if h.Kind != kindEager || h.Tag < 0 || e.direct != nil || e.match.wild.head != nil {
		return 0
	}
	n, v := int(h.Bytes), envelope{context: h.Context, source: int32(rank), tag: h.Tag}
	q := &e.match.exact[v.bin()]
	o := q.head
	for at := 0; taken < count && o != nil && o.env == v; taken++ {
		next := o.next
		o.next = nil
		e.deliver(o, v, payloads[at:at+n], n)
		o, at = next, at+strideBytes
	}
	e.match.tookFirst(q, taken, o)
	e.oweCredit(e.peer(rank), taken, n)
	return taken
}

// message is Message but for the common case.
func (e *engine) message(rank int, h *transport.Header, payload []byte) {
	if h.Kind == kindShrink { // looked at twice, and may be a view of memory that the peer can write
		payload = bytes.Clone(payload)
	}
	if err := e.validate(rank, h, payload); err != nil {
		e.lose(rank, err.Error())
		return
	}
	v := envelope{context: h.Context, source: int32(rank), tag: h.Tag}
	switch h.Kind {
	case kindEager: // no receive waits for it
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
		if !e.withdraw(p, o) {
			e.lose(rank, "malformed message: data asked for that it is reading out of memory")
			return
		}
		o.phase, o.sender, o.special, o.err = phaseMoving, h.Aux, true, nil
		o.bytes = min(int(h.Bytes), len(o.buf))
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
		e.revokeContext(rank, h.Context)
	case kindShrink:
		e.shrinkMessage(rank, h, payload)
	case kindRetract:
		e.retracted(rank, h.Token, h.Aux)
	case kindRetracted:
		if o := e.ops.find(h.Token); o != nil && o.kind == opSend && int(o.peer) == rank && o.phase == phaseOffered {
			if !o.retract {
				o.err = withdrawn(h.Aux)
			}
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
		if err != nil && o.err == ErrTruncated { // not even the beginning may be there: err says why
			o.err = nil
		}
	} else if err != nil && o.err != nil {
		// Tells the receive not to wait for the data. Where all the data was on its way already, the receive has finished,
		// and the message concerns nobody.
		e.control(p, transport.Header{Kind: kindRetract, Token: o.token(), Aux: o.sender})
	}
	switch {
	case err == nil && o.kind == opSend: // given up too late
	case err == nil || o.err != nil:
		err = o.err
	case p.lost != nil:
		err = p.lost
	case errors.Is(err, transport.ErrGone) && e.closing:
		err = ErrClosed // the peer was first
	case errors.Is(err, transport.ErrGone):
		err = &lostError{rank: int(o.peer), why: err.Error()}
	}
	e.finish(o, err)
}

// finish makes an op's outcome final.
func (e *engine) finish(o *op, err error) {
	o.phase, o.err = phaseFinished, err
	if o.special || e.asleep {
		e.signal(o)
	}
}

// signal tells whoever waits for an op that it has finished.
func (e *engine) signal(o *op) {
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
