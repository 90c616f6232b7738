package collective

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// How a failure reaches every rank:
//
//   - A lost rank is named by package mpi on every survivor: it fails whatever
//     is under way on the shadow communicator. Nothing has to be sent.
//   - A mismatch, or a rank that gives up because its context ended, is
//     announced to all ranks on the control tag. Those that wait look there every tick
//     (watch.go) and call off what they wait for.
//
// Either way the ranks no longer agree on which collective comes next, so the
// communicator stays broken for collectives, with the first reason.

// settleTime bounds the wait for messages that have been given up.
const settleTime = time.Second

// fail ends the execution with an error: nothing of it is under way any
// more when it returns, or the error is mpi.ErrInFlight.
func (x *execution) fail(err error) {
	left := x.abandon()
	kind := x.signature.kind()
	why := x.state.end(x.shadow, kind, x.seq, err)
	for _, e := range []error{err, left} {
		if errors.Is(e, mpi.ErrInFlight) {
			x.spoilt = true
			if e != why {
				why = inFlightToo(why, e)
			}
		}
	}
	x.err = x.state.fault(kind, x.seq, why)
}

// end ends collectives because of a call that failed, and returns why it did.
func (s *state) end(shadow *mpi.Comm, k plan.Kind, seq uint32, err error) error {
	switch b := s.broken.Load(); {
	case b == nil:
		s.giveUp(shadow, s.fault(k, seq, forOthers(err)))
	case b.Seq != seq || b.Op != k.String(): // else the call has ended itself
		return calledOff(b) // instead of the cancellation that it caused
	}
	return err
}

// calledOff is what the end of collectives means for a call that did not cause it.
func calledOff(b *Error) error {
	for _, common := range []error{mpi.ErrMismatch, mpi.ErrPeerLost, mpi.ErrRevoked, mpi.ErrClosed, mpi.ErrCancelled} {
		if errors.Is(b.Err, common) {
			return b.Err
		}
	}
	return fmt.Errorf("%w: %s of this rank gave up: %v", mpi.ErrCancelled, b.call(), b.Err)
}

// giveUp ends collectives on the communicator, unless they have ended, and tells the others what
// they do not learn by themselves.
func (s *state) giveUp(shadow *mpi.Comm, why *Error) {
	if !s.broken.CompareAndSwap(nil, why) {
		return
	}
	s.callOff(why) // those of other goroutines: no other rank comes to them any more
	if why.tells() {
		s.announce(shadow, why)
	}
}

// tells: the other ranks do not learn by themselves that collectives have ended for this reason.
func (e *Error) tells() bool {
	return !errors.Is(e, mpi.ErrPeerLost) && !errors.Is(e, mpi.ErrRevoked) && !errors.Is(e, mpi.ErrClosed)
}

// announce tells all other ranks that collectives on the communicator are over, and why.
func (s *state) announce(shadow *mpi.Comm, why *Error) {
	b := s.abortOf(shadow, why).encode()
	requests := make([]mpi.Request, 0, s.size)
	for r := range s.size {
		if r != s.rank {
			requests = append(requests, mpi.Isend(shadow, b, r, ctrlTag))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	_ = mpi.WaitAll(ctx, requests) // a rank that it does not reach has left, or asks when it waits for this one (heed)
}

// abortOf is the announcement of a failure: of this rank's own, or of another rank's, which is passed on in the words in
// which it was heard.
func (s *state) abortOf(shadow *mpi.Comm, why *Error) news {
	n := news{kind: newsAbort, seq: why.Seq}
	var m *mismatchError
	var g *gaveUpError
	switch {
	case errors.As(why.Err, &m):
		n.class, n.text = classMismatch, m.text
	case errors.Is(why.Err, mpi.ErrMismatch):
		n.class, n.text = classMismatch, why.Error()
	case errors.As(why.Err, &g):
		n.class, n.text = classGaveUp, g.text
	default:
		n.class, n.text = classGaveUp, fmt.Sprintf("rank %d (%s) gave up: %v", s.rank, shadow.Host(s.rank), why)
	}
	return n
}

// announced is what another rank's announcement means here.
func (s *state) announced(n news) *Error {
	why := &Error{Op: "collective", Comm: s.name, Seq: n.seq, Rank: s.rank}
	if n.class == classMismatch {
		why.Err = &mismatchError{text: n.text}
	} else {
		why.Err = &gaveUpError{text: n.text}
	}
	return why
}

// gaveUpError is mpi.ErrCancelled with the words of the rank that gave up.
type gaveUpError struct{ text string }

func (e *gaveUpError) Error() string { return mpi.ErrCancelled.Error() + ": " + e.text }
func (e *gaveUpError) Unwrap() error { return mpi.ErrCancelled }

// callOff ends all collectives that are under way here.
func (s *state) callOff(why *Error) {
	s.broken.CompareAndSwap(nil, why)
	s.endOff(why.Err)
	s.mu.Lock()
	active := append([]*execution(nil), s.watch.active...)
	s.mu.Unlock()
	for _, x := range active {
		x.mu.Lock()
		x.blocked.Cancel()
		x.mu.Unlock()
	}
}

// refuse is the error of a collective that is not started because of b.
func (s *state) refuse(q *call, b *Error) *Error {
	k := q.called()
	switch {
	case q.seq != 0: // it was called before that
		return s.fault(k, q.seq, calledOff(b))
	case errors.Is(b.Err, mpi.ErrClosed): // nothing went wrong
		return s.fault(k, 0, b.Err)
	}
	return s.fault(k, 0, fmt.Errorf("%w (%s): %w", ErrBroken, b.call(), b.Err))
}

// Release implements mpi.Releaser: no collective begins any more, those under way are called
// off, and the arena goes when its last meeting has ended. Of those that wait there,
// each looks up within arenaNap.
func (s *state) Release(why error) {
	s.callOff(&Error{Op: "release", Comm: s.name, Rank: s.rank, Err: why})
	s.mu.Lock()
	a := s.arena.Swap(nil)
	if a == nil {
		s.mu.Unlock()
		return
	}
	afterLast := a.tickets + 1 // whoever has found the arena has a ticket by now, or is refused
	s.mu.Unlock()
	a.enter(afterLast)
	a.drop()
}
