package mpi

import (
	"errors"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Unexpected messages: those for which no receive is posted. They are held or dropped, and taken back by their senders. Credit
// bounds what senders may have held here, so it is counted here for all eager messages. What one peer may have held at most
// is in hoard.go, the queues are in match.go.

// returnCredit returns the credit of an eager message that was held.
func (e *engine) returnCredit(a *arrival) {
	cost := a.bytes + transport.EnvelopeBytes
	if int(a.env.source) == e.rank {
		e.selfHeld -= cost
		return
	}
	p := e.peer(int(a.env.source))
	p.held -= cost
	e.oweCredit(p, 1, a.bytes)
}

// oweCredit counts credit that is owed for count eager messages of n bytes each, which the engine does not hold (any more),
// and returns the credit once enough is owed.
func (e *engine) oweCredit(p *peer, count, n int) {
	if p.owed += count * (n + transport.EnvelopeBytes); p.owed >= p.mostOwed {
		e.payCredit(p)
	}
}

func (e *engine) payCredit(p *peer) {
	if p.lost == nil {
		owed := p.owed
		p.owed = 0
		e.control(p, transport.Header{Kind: kindCredit, Aux: uint64(owed)})
	}
}

// hold keeps a message for which no receive is posted, in case one is later. It drops a message that no receive can take
// any more (unwanted), and one whose sender has too many here.
func (e *engine) hold(a *arrival) {
	if a.token != 0 && !e.announced(a) {
		e.recycle(a)
		return
	}
	if err := e.unwanted(a.env.context); err != nil {
		e.unannounce(a)
		e.refuse(a, err)
		return
	}
	if a.eager() && int(a.env.source) != e.rank && !e.charge(a) {
		e.recycle(a)
		return
	}
	e.match.hold(a)
	e.sighted()
}

// release takes a held message out of the queues.
func (e *engine) release(a *arrival) {
	e.match.release(a)
	e.unannounce(a)
}

// unannounce undoes announced.
func (e *engine) unannounce(a *arrival) {
	if a.token != 0 {
		e.peer(int(a.env.source)).announced--
	}
}

// unwanted says why messages for a context are not kept. It is nil if they are, also for a communicator that has yet to be
// made here.
func (e *engine) unwanted(context uint32) error {
	if c := e.comms[context]; c != nil {
		if c.revoked.Load() {
			return ErrRevoked
		}
		return nil
	}
	if _, revoked := e.revokedEarly[context&^1]; revoked {
		return ErrRevoked
	}
	if e.ended.has(context) {
		return errFreed
	}
	return nil
}

// discard drops a held message and gives back what it holds. Its sender hears why.
func (e *engine) discard(a *arrival, why error) {
	e.release(a)
	if a.eager() {
		e.returnCredit(a)
		e.recycle(a)
		return
	}
	e.refuse(a, why)
}

// retractedFreed in the Aux of a kindRetracted that was not asked for says that the receiver has
// freed the communicator; else it is revoked.
const retractedFreed = 1

// withdrawn is the error of a send whose receiver has dropped its announcement.
func withdrawn(aux uint64) error {
	if aux == retractedFreed {
		return errFreedThere
	}
	return ErrRevoked
}

// refuse drops a message that is not held (any more), and tells the sender of a large one why.
func (e *engine) refuse(a *arrival, why error) {
	switch {
	case a.sender != nil:
		e.finish(a.sender, why)
	case a.token != 0:
		h := transport.Header{Kind: kindRetracted, Token: a.token}
		if errors.Is(why, errFreed) {
			h.Aux = retractedFreed
		}
		p, x := e.peer(int(a.env.source)), parcel{step: stepAnswer, h: h}
		if !e.passes(p, &x) {
			e.enqueue(p, x)
		}
	case int(a.env.source) != e.rank:
		e.oweCredit(e.peer(int(a.env.source)), 1, a.bytes)
	}
	e.recycle(a)
}

// retracted forgets an announced message at its sender's wish, unless a receive has taken it already. If the data does not
// come to that receive after all, the sender retracts the message once more, and names the receive.
func (e *engine) retracted(rank int, token, receiver uint64) {
	if o := e.ops.find(receiver); receiver != 0 && o != nil && o.kind == opRecv && o.phase == phaseMoving && o.cleared && int(o.peer) == rank && o.sender == token {
		e.seekAgain(o)
		return
	}
	for a := e.match.first; a != nil; a = a.seqNext {
		if a.token == token && int(a.env.source) == rank {
			e.discard(a, ErrCancelled)
			return
		}
	}
}

func (e *engine) recycle(a *arrival) {
	e.pool.giveBuffer(a.payload)
	e.pool.giveArrival(a)
}
