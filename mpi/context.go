package mpi

import "context"

// Context ids tell the messages of communicators apart: which communicators are
// in use on this rank, and which ids are free.

func (e *engine) attach(_ context.Context, c *Comm) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return c.fail("create", ProcNull, AnyTag, ErrClosed, "")
	}
	_, revoked := e.revokedEarly[c.context]
	delete(e.revokedEarly, c.context)
	e.ended.again(c.context)
	for _, m := range []*Comm{c, c.shadow} {
		e.comms[m.context] = m
		m.revoked.Store(revoked)
		for _, l := range e.losses {
			if m.RankOf(l.rank) >= 0 {
				m.unacked++
			}
		}
		e.answerEarly(m.context)
	}
	if revoked {
		e.tellRevoked(c)
	}
	return nil
}

// forgo has messages refused that come from members which did make the communicator, as if this rank had made and freed it.
func (e *engine) forgo(_ []int32, context uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended.add(context, nil)
	e.discardOf(context, errFreed)
}

func (e *engine) detach(c *Comm) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended.add(c.context, e.forgetShrinks(c))
	for _, m := range []*Comm{c, c.shadow} {
		delete(e.comms, m.context)
		m.revoked.Store(true) // keeps calls off the fast paths; broken then says why
	}
	e.discardOf(c.context, errFreed)
}

// discardOf drops what is held for a communicator, or for one that is being made, and its shadow.
func (e *engine) discardOf(context uint32, why error) {
	for a := e.match.first; a != nil; {
		next := a.seqNext
		if a.env.context&^1 == context {
			e.discard(a, why)
		}
		a = next
	}
}

func (e *engine) nextContext() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.context
}

func (e *engine) claimContext(id uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id < e.context {
		return false
	}
	e.context = id + contextStep
	return true
}
