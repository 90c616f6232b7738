package collective

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
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
	input     []byte      // a copy that it reads
	until     until       // by which that is waited for
	round     int
	started   bool       // the round's messages are under way
	incoming  []incoming // of the round
	receives  []mpi.Request
	outgoing  []mpi.Request
	to        []int32 // whom they go to
	in, out   int     // the first incoming that may be unfinished, and how many outgoing from the first on

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
		x.ended = x.run(ctx, e)
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

// start does the local steps ahead of a round's messages, posts its receives, starts its sends, and then does the local
// steps beside them.
func (x *execution) start(ctx context.Context, e effort) error {
	steps := x.entry.plan.Round(x.round)
	for len(steps) > 0 && steps[0].Action.Local() {
		x.local(&steps[0])
		steps = steps[1:]
	}
	if err := x.startMessages(ctx, steps, e); err != nil {
		return err
	}
	for i := range steps {
		if st := &steps[i]; st.Action.Local() {
			if err := x.beside(ctx, st); err != nil {
				return err
			}
		}
	}
	return nil
}

// besideBytes are copied between two looks after the messages of a round: a socket has more to send meanwhile.
const besideBytes = 128 << 10

// beside does a local step while the messages of the round are under way, and looks after them.
func (x *execution) beside(ctx context.Context, st *plan.Step) error {
	n := st.N * x.entry.typ.size
	if st.Action != plan.Copy || x.state.sizesOnly || n <= besideBytes {
		x.local(st)
		return nil
	}
	dst, src := x.span(st.Dst, st.N), x.span(st.A, st.N)
	for at := 0; at < n; at += besideBytes {
		end := min(at+besideBytes, n)
		memcopy.Piece(dst[at:end], src[at:end], n)
		if _, err := x.settle(ctx, tryOnce); err != nil {
			return err
		}
	}
	return nil
}

// local does a step that concerns no other rank.
func (x *execution) local(st *plan.Step) {
	if st.Action == plan.Copy {
		x.copy(x.span(st.Dst, st.N), x.span(st.A, st.N))
		return
	}
	x.combine(st, x.span(st.Dst, st.N), x.span(st.A, st.N), x.span(st.B, st.N))
}

// startMessages posts the receives of a round and then starts its sends.
func (x *execution) startMessages(ctx context.Context, steps []plan.Step, e effort) error {
	x.incoming, x.receives, x.outgoing, x.to = x.incoming[:0], x.receives[:0], x.outgoing[:0], x.to[:0]
	x.in = 0
	x.started, x.out = true, 0
	puts, only := 0, -1
	stage, parts := 0, 0
	for i := range steps {
		st := &steps[i]
		switch st.Action {
		case plan.Get, plan.Fold:
			x.expect(st, &stage, &parts)
		case plan.Put, plan.PutParts:
			puts++
			only = i
		}
	}
	if err := x.room(stage, parts, steps); err != nil {
		return err
	}
	for i := range x.incoming {
		if !x.heldBack(i) {
			x.postFirst(&x.incoming[i])
		}
	}
	if len(x.incoming) > 1 || len(x.expected) > 0 {
		x.expectAll()
	}
	if puts == 1 && e == untilDone && !x.state.takesBack && x.signed(steps[only].N) {
		return x.sendNow(ctx, &steps[only], stage)
	}
	for i := range steps {
		if a := steps[i].Action; a == plan.Put || a == plan.PutParts {
			stage = x.send(&steps[i], stage)
		}
	}
	x.out = len(x.outgoing)
	return nil
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

// room sees to the memory that messages of the round pass through.
func (x *execution) room(stage, parts int, steps []plan.Step) (err error) {
	for i := range steps {
		if st := &steps[i]; (st.Action == plan.Put || st.Action == plan.PutParts) && x.signed(st.N) {
			stage += stageBytes(st.N * x.entry.typ.size)
		}
	}
	if stage > len(x.stage) {
		x.stage = make([]byte, stage)
	}
	if parts > len(x.parts) {
		x.parts, err = x.state.scratch(parts)
	}
	return err
}

// sendNow is the round's only send, short: the system's MPI library is quicker without a request.
func (x *execution) sendNow(ctx context.Context, st *plan.Step, stage int) error {
	if broken := x.waitFor(mpi.Request{}, st.Peer); broken != nil {
		return broken.Err
	}
	err := mpi.Send(x.until.begin(ctx), x.shadow, x.sign(st, stage), int(st.Peer), x.tag)
	x.until.end()
	return err
}

// sign puts signature and payload together.
func (x *execution) sign(st *plan.Step, stage int) []byte {
	n := st.N * x.entry.typ.size
	b := x.stage[stage:][:signatureBytes+n]
	copy(b, x.signature[:])
	copy(b[signatureBytes:], x.span(st.A, st.N))
	return b
}

// send starts a Put or all parts of a PutParts; it returns the next free
// place in stage.
func (x *execution) send(st *plan.Step, stage int) int {
	if x.signed(st.N) {
		x.give(x.sign(st, stage), st.Peer)
		return stage + stageBytes(st.N*x.entry.typ.size)
	}
	b, size := x.span(st.A, st.N), x.entry.typ.size
	if st.Action == plan.Put {
		x.give(b, st.Peer)
		return stage
	}
	for i := range st.Parts() {
		from, n := st.Piece(i)
		x.give(b[from*size:][:n*size], st.Peer)
	}
	return stage
}

// give starts the send of one message.
func (x *execution) give(b []byte, to int32) {
	x.outgoing = append(x.outgoing, mpi.Isend(x.shadow, b, int(to), x.tag))
	x.to = append(x.to, to)
}

// settle finishes the round's messages, receives first, in order, then sends.
func (x *execution) settle(ctx context.Context, e effort) (done bool, err error) {
	for x.in < len(x.incoming) {
		m := &x.incoming[x.in]
		for m.finished < m.count {
			r := &x.receives[m.first+m.finished%m.window]
			status, ok, err := x.await(ctx, *r, m.step.Peer, e)
			if !ok {
				return false, err
			}
			*r = mpi.Request{}
			if err := x.accept(m, status, err); err != nil {
				return false, err
			}
			m.finished++
			x.postNext(x.in)
		}
		x.in++
	}
	// The last first: what is waited for is the first to be given up, and a message that stayed behind one
	// to the same rank would be taken for that.
	for x.out > 0 {
		last := x.out - 1
		_, ok, err := x.awaitFirm(ctx, x.outgoing[last], x.to[last], e)
		if !ok {
			return false, err
		}
		x.outgoing[last] = mpi.Request{}
		if err != nil {
			return false, err
		}
		x.out--
	}
	return true, nil
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

// awaitFirm is await for what not every device takes back: sends, and the collectives of the system's
// MPI library. What Cancel does elsewhere, the end of a context does there, and leaves them in flight.
func (x *execution) awaitFirm(ctx context.Context, r mpi.Request, peer int32, e effort) (mpi.Status, bool, error) {
	if status, ok, err := r.Test(); ok { // as short sends have, and nobody has to know of them
		x.progress.Add(1)
		return status, ok, err
	}
	if e == untilDone {
		defer x.until.end()
		ctx = x.untilOff(ctx)
	}
	return x.await(ctx, r, peer, e)
}

// untilOff is ctx for a wait that must end when collectives are called off, also where Cancel does not end it. Nobody
// waits by it any more when until ends.
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

// deliver copies or folds a received part into its place.
func (x *execution) deliver(m *incoming, b []byte) {
	lo, _ := x.piece(m, m.finished)
	dst := x.span(m.step.Dst, m.step.N)[lo:][:len(b)]
	if m.step.Action == plan.Get {
		copy(dst, b)
		return
	}
	x.combine(&m.step, dst, x.span(m.step.A, m.step.N)[lo:][:len(b)], b)
}

// combine stores a op b in dst, or b op a if the step says so.
func (x *execution) combine(st *plan.Step, dst, a, b []byte) {
	switch {
	case x.state.sizesOnly:
		x.state.charge(func(m *plan.Model) float64 { return m.Combine.At(len(dst)) })
	case st.Left:
		x.entry.combine(dst, b, a)
	default:
		x.entry.combine(dst, a, b)
	}
}

func (x *execution) copy(dst, src []byte) {
	if x.state.sizesOnly {
		x.state.charge(func(m *plan.Model) float64 { return m.Copy.At(len(dst)) })
		return
	}
	memcopy.Copy(dst, src)
}
