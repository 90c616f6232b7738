package mpi

import (
	"context"
	"errors"

	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The receiving side of the protocol.

// recv is the blocking receive.
func (e *engine) recv(ctx context.Context, c *Comm, buf []byte, src, tag int) (Status, error) {
	e.mu.Lock()
	e.calls++
	s, err := e.receiveNext(ctx, c, buf, src, tag)
	e.mu.Unlock()
	return s, err
}

// receiveNext is recv with the lock held. In a crowd, a message that has not come yet mostly has come once the other ranks
// have had their turn on the processor, and is then taken. The general wait would look at every peer's ring first, whose
// lines the other ranks have meanwhile driven out of the caches: eight ranks on two processors exchanged messages in 43 µs
// that way, and do in 35 this way.
func (e *engine) receiveNext(ctx context.Context, c *Comm, buf []byte, src, tag int) (Status, error) {
	for w := (osyield.Wait{}); e.match.posted == 0 && e.match.unexpected == 0 && e.own.phase == phaseFree && src >= 0 && c.sound() && !e.closed; {
		n, found := e.recvNow(c, buf, src, tag)
		switch {
		case found == transport.Taken:
			return Status{Source: src, Tag: tag, Bytes: n}, nil
		case found == transport.Other || !e.crowded || w.Yields == takeYields:
			return e.finishWait(ctx, e.recvDirect(c, buf, src, tag))
		}
		e.leader = leaderCaller // only the leader may use home
		e.mu.Unlock()
		e.home.Yield(&w)
		e.mu.Lock()
		e.leader = leaderNone
		e.handOver()
	}
	return e.finishWait(ctx, e.startRecv(c, buf, src, tag))
}

const (
	takeLooks   = 32 // about the time of an answer from a rank of this host
	looksAtOnce = 8
	takeYields  = 2 // in a crowd, before all peers are looked at
	takesInRow  = 128
)

// recvNow takes a small message from where its peer has put it or is about to put it, the
// common case: one call of the provider, and nothing to remember. It must not be called while anything
// waits to be matched. It returns transport.Other where a message cannot be taken this way, and every takesInRow-th time,
// so that the general wait looks at the other peers, too.
func (e *engine) recvNow(c *Comm, buf []byte, src, tag int) (int, transport.Find) {
	p := e.peers[c.group[src]]
	if p == nil || p.taker == nil || p.lost != nil || tag == AnyTag || e.leader != leaderNone || len(e.backlog)+len(e.unread) > 0 {
		return 0, transport.Other
	}
	if e.taken++; e.taken%takesInRow == 0 {
		return 0, transport.Other
	}
	h := &e.hdr
	h.Kind, h.Context, h.Tag = kindEager, c.context, int32(tag)
	looks := takeLooks
	if e.crowded {
		looks = 1
	}
	n, found := 0, transport.Nothing
	for i := 0; found == transport.Nothing && i < looks && !e.mu.Wanted(); i += looksAtOnce {
		n, found = p.taker.Take(p.rank, h, buf, min(looks, looksAtOnce))
	}
	if found == transport.Taken {
		e.oweCredit(p, 1, n)
	}
	return n, found
}

// recvDirect posts a receive that needs no place in the queues: since nothing else waits
// to be matched, it stays the oldest receive until it has its message.
func (e *engine) recvDirect(c *Comm, buf []byte, src, tag int) *op {
	o := e.own
	o.kind, o.comm, o.buf, o.peer = opRecv, c, buf, -1
	o.env = envelope{context: c.context, source: c.group[src], tag: int32(tag)}
	o.err, o.retract = nil, false
	if p := e.peers[o.env.source]; p != nil && p.lost != nil {
		e.finish(o, p.lost)
		return o
	}
	e.match.number(o)
	o.phase = phasePosted
	e.direct = o
	return o
}

// irecv is never inlined. A profile would have it inlined, and what it calls would then not be inlined in turn.
//
//go:noinline
func (e *engine) irecv(c *Comm, buf []byte, src, tag int) Request {
	e.mu.Lock()
	e.calls++
	o := e.startRecv(c, buf, src, tag)
	r := Request{o: o, gen: o.gen}
	e.mu.Unlock()
	return r
}

// startRecv begins a receive. The op may be finished when it returns.
func (e *engine) startRecv(c *Comm, buf []byte, src, tag int) *op {
	o, v := e.ops.get(), c.envelope(src, tag)
	o.kind, o.comm, o.buf, o.peer, o.env = opRecv, c, buf, -1, v
	e.match.number(o)
	if e.match.unexpected > 0 || v.wild() || !e.mayCome(c, v.source) {
		e.seek(o)
		return o
	}
	o.phase = phasePosted // as seek does, but without loads of what has just been stored in the op
	e.match.postNewest(o, v)
	return o
}

// mayCome reports whether messages of a rank can be received on c.
func (e *engine) mayCome(c *Comm, rank int32) bool {
	p := e.peers[rank]
	return c.sound() && !e.closed && (p == nil || p.lost == nil)
}

// seek gives a receive the oldest message that it takes, or posts it.
func (e *engine) seek(o *op) {
	c := o.comm
	if e.closed || !c.sound() {
		e.finish(o, e.broken(c))
		return
	}
	if e.match.unexpected > 0 {
		if a := e.match.find(o.env); a != nil {
			e.release(a)
			e.receive(o, a)
			return
		}
	}
	if o.env.source >= 0 {
		if p := e.peers[o.env.source]; p != nil && p.lost != nil {
			e.finish(o, p.lost)
			return
		}
	} else if c.unacked > 0 {
		e.finish(o, e.lastLoss(c))
		return
	}
	o.phase = phasePosted
	e.match.post(o)
}

// claim finds the receive that takes a message.
func (e *engine) claim(v envelope) *op {
	if o := e.direct; o != nil && o.env.accepts(v) {
		e.direct = nil
		return o
	}
	return e.match.take(v)
}

// unclaim undoes claim.
func (e *engine) unclaim(o *op) {
	if o == e.own {
		e.direct = o
		return
	}
	e.match.post(o)
}

// unpost takes a posted receive back.
func (e *engine) unpost(o *op) {
	if o == e.direct {
		e.direct = nil
		return
	}
	e.match.withdraw(o)
}

// receive gives a held message to a receive.
func (e *engine) receive(o *op, a *arrival) {
	switch {
	case a.sender != nil:
		e.deliverSelf(o, a.sender)
	case a.token != 0:
		e.begin(o, a.env, a.bytes, a.token, a.key)
	default:
		e.deliver(o, a.env, a.payload, a.bytes)
		e.returnCredit(a)
	}
	e.recycle(a)
}

// deliver completes a receive with a whole message.
func (e *engine) deliver(o *op, v envelope, payload []byte, n int) {
	o.peer, o.tag, o.bytes = v.source, v.tag, n
	memcopy.Short(o.buf, payload)
	if n > len(o.buf) {
		e.finish(o, ErrTruncated)
		return
	}
	e.finish(o, nil)
}

// begin starts to fetch a message that was announced by RTS.
func (e *engine) begin(o *op, v envelope, n int, token uint64, key []byte) {
	o.peer, o.tag, o.bytes = v.source, v.tag, n
	o.sender, o.special = token, true
	o.cleared = false
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
			e.enqueue(p, parcel{step: stepPull, o: o, gen: o.gen, h: transport.Header{Kind: kindFIN, Token: token}})
		}
		return
	}
	o.cleared = true
	e.control(p, transport.Header{Kind: kindCTS, Token: token, Aux: o.token(), Bytes: uint64(min(n, len(o.buf)))})
}

func (e *engine) pull(p *peer, o *op) transport.Outcome {
	out := e.outcome(p, p.memory.Pull(p.rank, o.key, o.buf[:min(o.bytes, len(o.buf))], o.token()))
	switch out {
	case transport.Sent:
		o.busy = true
		e.rouse()
	case transport.Gone:
		e.finish(o, e.gone(p))
	}
	return out
}

// Claim implements transport.Claimer: an eager message is read straight into the buffer of the receive that waits for it. A
// message that is too long for the buffer comes by Message.
func (e *engine) Claim(rank int, h *transport.Header, sizeBytes int) bool {
	if h.Kind != kindEager || h.Bytes != uint64(sizeBytes) || h.Token != 0 || h.Tag < 0 {
		return false
	}
	o := e.claim(envelope{context: h.Context, source: int32(rank), tag: h.Tag})
	switch {
	case o == nil:
		return false
	case sizeBytes > len(o.buf):
		e.unclaim(o)
		return false
	}
	o.peer, o.tag, o.bytes = int32(rank), h.Tag, sizeBytes
	o.sender, o.cleared, o.phase = 0, false, phaseMoving
	h.Token = o.token()
	return true
}

// placing is the receive whose message is coming; nil if it has been given up, or has asked for no Data: until a pull has
// completed, its memory is the provider's.
func (e *engine) placing(rank int, h *transport.Header) *op {
	o := e.ops.find(h.Token)
	if o == nil || o.kind != opRecv || int(o.peer) != rank || o.phase != phaseMoving || o.cleared != (h.Kind == kindData) {
		return nil
	}
	return o
}

// Place implements transport.Sink.
func (e *engine) Place(rank int, h *transport.Header, offsetBytes, sizeBytes int) []byte {
	o := e.placing(rank, h)
	if o == nil {
		e.endClaimed(rank, h)
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
	if o := e.placing(rank, h); o != nil {
		e.finish(o, o.err)
	}
	e.endClaimed(rank, h)
}

// endClaimed returns the credit of an eager message that was claimed and has come, or is discarded.
func (e *engine) endClaimed(rank int, h *transport.Header) {
	if h.Kind == kindEager {
		e.oweCredit(e.peer(rank), 1, int(h.Bytes))
	}
}

// errTakenBack ends a receive whose buffer was made for a message that its sender has taken back.
var errTakenBack = errors.New("the message has been taken back")

// seekAgain has a receive go on as if the message that it was getting had never been sent.
func (e *engine) seekAgain(o *op) {
	o.peer, o.sender, o.err = -1, 0, nil
	switch {
	case o.retract:
		e.finish(o, ErrCancelled)
	case o.fitted:
		e.finish(o, errTakenBack)
	default:
		if d := e.direct; d != nil { // once o is posted, d is not the oldest any more
			e.direct = nil
			e.match.post(d)
		}
		e.seek(o)
	}
}
