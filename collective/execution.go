package collective

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// execution runs one plan once; they are pooled per entry. What is not
// atomic or under mu is guarded by turn.
type execution struct {
	state     *state
	entry     *entry
	comm      *mpi.Comm // alive while the collective is
	shadow    *mpi.Comm
	seq       uint32
	tag       int
	signature signature

	mem   [3][]byte // Send, Recv, Work
	stage []byte    // signed messages of the round
	parts []byte    // landing place of folds, window parts for each

	agreement *agreement  // on counts, ahead of all else; nil: none, or it is reached
	native    mpi.Request // of the system's MPI library
	input     []byte      // a copy of the input, which the library reads
	until     until       // context for waits in the system's MPI library
	round     int
	started   bool       // the round's messages are under way
	incoming  []incoming // of the round
	receives  []mpi.Request
	outgoing  []mpi.Request
	to        []int32 // the ranks that outgoing goes to
	in, out   int     // the first incoming that may be unfinished; how many of outgoing may be, from the first on

	spoilt bool // memory may still be in use: not for the pool
	err    *Error

	// turn is held by whoever advances the execution: its caller or, for a
	// nonblocking one, the look-out now and then.
	turn        sync.Mutex
	live        atomic.Uint32 // seq while in use, else 0
	progress    atomic.Uint32 // grows with every message
	ended       bool
	nonblocking bool
	doubt       *earlierError // by which it ends when the cause is found

	mu       sync.Mutex
	blocked  mpi.Request // what the waiting goroutine sleeps on
	peer     int32       // the rank it waits for, nobody, finished or elsewhere
	expected []expected  // what the round has begun to receive, if from several
	awaited  awaited     // of a meeting in an arena
}

// Peers of an execution that waits for no rank: for none in particular, for its caller only, or for a part of its call that has
// an execution of its own.
const (
	nobody    = -1
	finished  = -2
	elsewhere = -3
)

func newExecution(s *state, e *entry) (*execution, error) {
	work, err := s.scratch(e.plan.Work * e.typ.size)
	if err != nil {
		return nil, err
	}
	x := &execution{state: s, entry: e, until: until{off: s.off}}
	x.mem[plan.Work] = work
	return x, nil
}

// heldBytes is the memory that the execution keeps from one call to the next.
func (x *execution) heldBytes() int {
	return len(x.mem[plan.Work]) + cap(x.stage) + cap(x.parts) + cap(x.input)
}

// begin readies the execution for a call that may have to agree on its counts first. The state is locked.
func (x *execution) begin(c *mpi.Comm, q *call, first *agreement) {
	peer := int32(nobody)
	if x.agreement = first; first != nil {
		peer = elsewhere
	}
	x.comm, x.shadow = c, c.Shadow()
	x.seq, x.tag = q.seq, firstTag+int(q.seq%tagsOf(c))
	x.mem[plan.Send], x.mem[plan.Recv] = q.send, q.recv
	x.round, x.started, x.err, x.doubt, x.ended = 0, false, nil, nil, false
	x.signature = q.signatureBy(x.entry)
	x.mu.Lock()
	x.blocked, x.peer = mpi.Request{}, peer
	x.expected = x.expected[:0]
	x.mu.Unlock()
	x.live.Store(q.seq)
}

// effort is how far a caller goes with an execution.
type effort uint8

const (
	tryOnce   effort = iota // as far as it goes without waiting
	untilDone               // to its end, or that of the context
)

// advance runs the plan as far as its caller wants to go, and reports
// whether it has ended; then x.err is final and all memory is the caller's
// again, unless x.err is mpi.ErrInFlight. The caller has the turn.
func (x *execution) advance(ctx context.Context, e effort) bool {
	if !x.ended {
		over := false
		if x.entry.op.user != nil {
			defer func() {
				if !over { // nor does the caller come to release it
					x.fail(noReturn(x.entry.op))
					x.spoilt = true
					x.state.release(x)
				}
			}()
		}
		x.ended = x.run(ctx, e)
		over = true
		if x.ended && e == tryOnce { // else it is released next
			x.mu.Lock()
			x.blocked, x.peer = mpi.Request{}, finished
			x.mu.Unlock()
		}
	}
	return x.ended
}

func (x *execution) run(ctx context.Context, e effort) bool {
	if x.doubt == nil {
		if !x.agree(ctx, e) {
			return x.err != nil
		}
		done, err := x.proceed(ctx, e)
		if err == nil {
			return done
		}
		if !errors.As(err, &x.doubt) {
			x.fail(err)
			return true
		}
	}
	err := x.state.findCause(ctx, x.shadow, x.doubt, e)
	if err != nil {
		x.fail(err)
	}
	return err != nil
}

// proceed reports whether it has come to the end.
func (x *execution) proceed(ctx context.Context, e effort) (done bool, err error) {
	if x.entry.way == byLibrary {
		_, ok, err := x.awaitFirm(ctx, x.native, nobody, e)
		if ok {
			x.native = mpi.Request{}
		}
		return ok, err
	}
	rounds := len(x.entry.plan.Rounds)
	for x.round < rounds {
		if !x.started {
			if err := x.start(ctx, e); err != nil {
				return false, err
			}
		}
		done, err := x.settle(ctx, e)
		if err != nil || !done {
			return false, err
		}
		x.round++
		x.started = false
	}
	return true, nil
}

// span is the memory of n elements.
func (x *execution) span(l plan.Loc, n int) []byte {
	size := x.entry.typ.size
	return x.mem[l.Buf][l.Off*size:][:n*size]
}

// signed: messages of n elements carry a signature.
func (x *execution) signed(n int) bool {
	return !x.state.sizesOnly && n*x.entry.typ.size <= signedBytes
}

// await waits for a request, or tests it. ok is false while it has not
// finished, with an error if the collective has been called off.
func (x *execution) await(ctx context.Context, r mpi.Request, peer int32, e effort) (status mpi.Status, ok bool, err error) {
	if broken := x.waitFor(r, peer); broken != nil {
		return status, false, broken.Err
	}
	if e == untilDone {
		status, err = r.Wait(ctx)
		ok = true
	} else if status, ok, err = r.Test(); !ok {
		return status, false, nil
	}
	x.progress.Add(1)
	return status, ok, err
}

// awaitFirm is await for requests that not every device can take back: sends, and the collectives of the system's MPI
// library. Where Cancel does not end such a wait, the end of a context does, and leaves the request in flight.
func (x *execution) awaitFirm(ctx context.Context, r mpi.Request, peer int32, e effort) (mpi.Status, bool, error) {
	if status, ok, err := r.Test(); ok { // short sends have ended already, and the look-out need not know of them
		x.progress.Add(1)
		return status, ok, err
	}
	if e == untilDone {
		defer x.until.end()
		ctx = x.untilOff(ctx)
	}
	return x.await(ctx, r, peer, e)
}

// untilOff is ctx for a wait that must end when collectives are called off, also where Cancel does not end it. The caller
// calls x.until.end when nobody waits by it any more.
func (x *execution) untilOff(ctx context.Context) context.Context {
	if x.state.takesBack {
		return ctx
	}
	return x.until.begin(ctx)
}

// waitFor lets the look-out know of what is waited for next, unless it has called collectives off.
func (x *execution) waitFor(r mpi.Request, peer int32) (broken *Error) {
	x.mu.Lock()
	x.blocked, x.peer = r, peer
	broken = x.state.broken.Load()
	x.mu.Unlock()
	return broken
}
