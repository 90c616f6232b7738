package mpi

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A caller goes without its buffer when somebody else may still touch that: because its context has ended, or
// because the peer is lost and the provider cannot tell whether it writes any more. A process that is stopped in
// the middle of a copy goes on with it when it is woken, however long ago it was given up.

// takeBackTime is how long a caller waits for its buffer, once its context has ended or its peer is lost,
// before it gets ErrInFlight.
const takeBackTime = 250 * time.Millisecond

// over: the caller need not wait any more.
func (o *op) over() bool { return o.finished() || o.stranded != nil }

// leave has the caller of an unfinished op go, for a reason. The op is given back when it finishes.
func (e *engine) leave(o *op, why error) error {
	o.gaveUp, o.special = true, true
	if o == e.own {
		e.own = e.ops.get()
	}
	err := e.describe(o, fmt.Errorf("%w: %w", ErrInFlight, why))
	var at *Error
	if errors.As(err, &at) {
		at.Done = e.watch(o)
	}
	return err
}

// letGo implements device.
func (e *engine) letGo(r Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sleeper != nil {
		_ = e.await(context.Background(), r.o) // ends when it has finished, or the world has
	}
	r.o.gaveUp, r.o.special = true, true
	if r.o.finished() {
		e.ops.put(r.o)
	}
}

// strandLater lets the callers of operations go whose memory the provider still holds some time after their peer
// was lost. The lock is held.
func (e *engine) strandLater(rank int) {
	if !e.holds(rank) || e.sleeper != nil { // in virtual time nobody is stopped
		return
	}
	time.AfterFunc(takeBackTime, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, o := range e.ops.all {
			if !e.closed && o.held(rank) && !o.gaveUp {
				e.strand(o)
			}
		}
	})
}

// holds reports whether the provider holds the memory of an operation with a rank.
func (e *engine) holds(rank int) bool {
	for _, o := range e.ops.all {
		if o.held(rank) {
			return true
		}
	}
	return false
}

func (o *op) held(rank int) bool { return o.underWay() && o.busy && int(o.peer) == rank }

// strand lets the caller of an op with a lost peer go. Done meant the op to the caller, and means its buffer
// from now on.
func (e *engine) strand(o *op) {
	o.stranded, o.special = e.peer(int(o.peer)).lost, true
	if o.waiter != nil {
		o.waiter.signal()
	}
	if o.done != nil {
		close(o.done)
		o.done = nil
		e.watched--
	}
	e.nudge()
}

// giveUp ends a wait whose context has ended. The lock is held.
func (e *engine) giveUp(ctx context.Context, o *op) (Status, error) {
	e.abort(o, context.Cause(ctx))
	if o.finished() {
		return e.collect(o)
	}
	grace, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	return e.takenBack(ctx, grace, o)
}

// takenBack waits within grace for an op that ctx has aborted.
func (e *engine) takenBack(ctx, grace context.Context, o *op) (Status, error) {
	if !o.finished() {
		_ = e.await(grace, o) // unfinished: reported below
	}
	if o.finished() {
		return e.collect(o)
	}
	return Status{}, e.leave(o, context.Cause(ctx))
}
