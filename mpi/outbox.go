package mpi

import "github.com/fisterra-hpc/fisterra/mpi/transport"

// parcel is something that could not leave because the provider was full. It
// notes the generation of its op, so that a parcel whose op was given up is passed over.
type parcel struct {
	step step
	gen  uint32
	o    *op
	h    transport.Header // stepControl, stepAnswer: the message; stepGet: the request; stepPull: FIN, if the receive was given up
	more []byte           // stepControl, stepAnswer: payload, owned by the parcel
}

// answers: the peer has asked for it.
func (x *parcel) answers() bool { return x.step >= stepAnswer }

// stale: the op is over.
func (x *parcel) stale() bool { return x.o.gen != x.gen || x.o.finished() }

type step uint8

const (
	stepOffer   step = iota // first move of a send
	stepPush                // payload of a cleared send
	stepPull                // receive by pulling
	stepControl             // message of the protocol's own
	stepAnswer              // likewise, that the peer has asked for: about a window, or by an announcement
	stepGet                 // likewise: the answer to the windowGet in h, read from the window when it leaves
)

// outbox is a first-in first-out queue of parcels for one peer. It is bounded by the operations that the
// program has under way, with at most as many given-up sends besides (or overMost), and by what the peer has announced
// or asked for (hoard.go).
type outbox struct {
	q       []parcel
	head    int
	answers int // parcels that are answers
	over    int // offers whose ops have been given up
}

func (b *outbox) empty() bool { return b.head == len(b.q) }

func (b *outbox) push(x parcel) {
	if x.answers() {
		b.answers++
	}
	b.q = append(b.q, x)
}

func (b *outbox) front() *parcel { return &b.q[b.head] }

func (b *outbox) pop() {
	if b.q[b.head].answers() {
		b.answers--
	}
	b.q[b.head] = parcel{}
	b.head++
	if b.head == len(b.q) {
		b.q, b.head, b.over = b.q[:0], 0, 0
	} else if b.head >= 64 && b.head*2 >= len(b.q) {
		n := copy(b.q, b.q[b.head:])
		clear(b.q[n:])
		b.q, b.head = b.q[:n], 0
	}
}

// overMost is how many given-up offers an outbox keeps in any case.
const overMost = 64

// giveUp counts an offer whose op has been given up. When such offers are more than overMost, and more than all other
// parcels, they are thrown out, except at the front: only flush may empty an outbox.
func (b *outbox) giveUp() {
	b.over++
	if b.over <= overMost || 2*b.over <= len(b.q)-b.head {
		return
	}
	kept := b.q[:b.head+1]
	for _, x := range b.q[b.head+1:] {
		if x.step != stepOffer || !x.stale() {
			kept = append(kept, x)
		}
	}
	clear(b.q[len(kept):])
	b.q, b.over = kept, 0
	if x := b.front(); x.step == stepOffer && x.stale() {
		b.over = 1
	}
}

func (e *engine) enqueue(p *peer, x parcel) {
	if p.out.empty() {
		e.backlog = append(e.backlog, p)
	}
	if x.step == stepOffer {
		x.o.phase = phaseQueued
	}
	p.out.push(x)
}

// flush offers the backlog to the providers again and returns how much of it
// has left.
func (e *engine) flush() int {
	n := 0
	for i := 0; i < len(e.backlog); {
		p := e.backlog[i]
		for !p.out.empty() && e.dispatch(p, p.out.front()) != transport.Full {
			p.out.pop()
			n++
		}
		if p.out.empty() {
			last := len(e.backlog) - 1
			e.backlog[i] = e.backlog[last]
			e.backlog[last] = nil
			e.backlog = e.backlog[:last]
			e.sighted()
		} else {
			i++
		}
	}
	for i := 0; i < len(e.unread); {
		o := e.unread[i]
		p := e.peer(int(o.peer))
		if p.lost == nil && !p.memory.Withdraw(p.rank, o.key) {
			i++
			continue
		}
		e.unread = append(e.unread[:i], e.unread[i+1:]...)
		o.exposed = false
		e.finish(o, o.err)
		n++
	}
	return n
}

// passes reports whether a parcel need not wait: it has left, or its peer is lost.
func (e *engine) passes(p *peer, x *parcel) bool {
	return p.lost != nil || p.out.empty() && e.dispatch(p, x) != transport.Full
}

func (e *engine) dispatch(p *peer, x *parcel) transport.Outcome {
	step := x.step
	if x.o != nil && x.stale() {
		if step == stepOffer {
			p.out.over--
		}
		if step != stepPull {
			return transport.Gone
		}
		step = stepControl // send the FIN: the sender waits to hear that its memory is its own again
	}
	switch step {
	case stepOffer:
		return e.offer(p, x.o)
	case stepPush:
		return e.push(p, x.o)
	case stepPull:
		return e.pull(p, x.o)
	}
	if p.lost != nil {
		return transport.Gone
	}
	e.hdr = x.h
	payload := x.more
	if step == stepGet {
		e.hdr, payload = e.windows.got(&x.h)
	}
	return e.outcome(p, p.provider.Send(p.rank, &e.hdr, payload))
}
