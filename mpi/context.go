package mpi

import (
	"context"
	"maps"
)

// Context ids tell the messages of communicators apart: which communicators are
// in use on this rank, and which ids are free.

func (e *engine) attach(_ context.Context, c *Comm) error {
	e.lock()
	defer e.unlock()
	if e.closed {
		return c.fail("create", ProcNull, AnyTag, ErrClosed, "")
	}
	for _, m := range []*Comm{c, c.shadow} {
		e.comms[m.context] = m
		if e.doomed[m.context] {
			m.revoked.Store(true)
		}
		for _, l := range e.losses {
			if m.RankOf(l.rank) >= 0 {
				m.unacked++
			}
		}
		e.answerEarly(m.context)
	}
	if c.revoked.Load() {
		e.tellRevoked(c)
	}
	return nil
}

func (e *engine) detach(c *Comm) {
	e.lock()
	defer e.unlock()
	maps.DeleteFunc(e.shrinks, func(id shrinkID, _ *shrinkState) bool { return id.comm.shadow == c.shadow })
	for _, m := range []*Comm{c, c.shadow} {
		delete(e.comms, m.context)
		m.revoked.Store(true) // off the fast paths, which broken then explains
		for a := e.match.first; a != nil; {
			next := a.seqNext
			if a.env.context == m.context {
				e.discard(a)
			}
			a = next
		}
	}
}

func (e *engine) nextContext() uint32 {
	e.lock()
	defer e.unlock()
	return e.context
}

func (e *engine) claimContext(id uint32) bool {
	e.lock()
	defer e.unlock()
	if id < e.context {
		return false
	}
	e.context = id + contextStep
	return true
}
