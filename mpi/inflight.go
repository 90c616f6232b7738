package mpi

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A call returns without giving the buffer back (ErrInFlight) when somebody else may still touch the buffer after the
// call's context has ended, or after the peer was lost and the provider cannot tell whether it still writes. A process
// that is stopped in the middle of a copy finishes the copy when it is continued, however long ago it was given up.

// takeBackTime is how long a caller waits for its buffer, once its context has ended or its peer is lost,
// before it gets ErrInFlight.
const takeBackTime = 250 * time.Millisecond

// over: the caller need not wait any more.
func (o *op) over() bool { return o.finished() || o.stranded != nil }

// leave lets the caller of an unfinished op go with ErrInFlight, for the reason why. The op is given back when it finishes.
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

// strandLater lets callers go if the provider still holds their operations' memory takeBackTime after the peer was lost.
// The lock is held.
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

// strand lets the caller of an op with a lost peer go. It closes the caller's Done channel, if there is one, which stood for
// the end of the op. The channel that leave makes stands for the free buffer.
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
