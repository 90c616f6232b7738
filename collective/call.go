package collective

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// run is a blocking collective.
func run(ctx context.Context, c *mpi.Comm, m *meeting) error {
	s := stateOf(c)
	if a := s.arena.Load(); a != nil && m.err == nil && m.meets() {
		m.arena, m.comm = a, c
		return s.meet(ctx, m)
	}
	return s.runFirst(ctx, c, m)
}

// runFirst is run for a call that may be the first to find an arena, or has none.
func (s *state) runFirst(ctx context.Context, c *mpi.Comm, m *meeting) error {
	if m.err != nil {
		return s.reject(&m.call, m.err)
	}
	if m.meets() {
		a, err := s.arenaFor(ctx, c, &m.call)
		if err != nil {
			return err
		}
		if a != nil {
			m.arena, m.comm = a, c
			return s.meet(ctx, m)
		}
	}
	return s.perform(ctx, c, &m.call)
}

// arenaFor is the arena for a call that can meet there, also if it is new; nil: there is none.
func (s *state) arenaFor(ctx context.Context, c *mpi.Comm, q *call) (*arena, error) {
	settled := s.arenaSettled.Load() // loaded before the arena, which is stored before this becomes true
	if a := s.arena.Load(); a != nil || settled {
		return a, nil
	}
	return s.admit(ctx, c, q)
}

// perform does a call, or a part of one, by messages.
func (s *state) perform(ctx context.Context, c *mpi.Comm, q *call) error {
	x, err := s.acquire(c, q, blocking)
	if err != nil {
		return err
	}
	x.advance(ctx, untilDone)
	failed := x.err
	s.release(x)
	if failed != nil {
		return failed
	}
	return nil
}

// start is a nonblocking collective.
func start(c *mpi.Comm, q *call) Request {
	s := stateOf(c)
	if q.err != nil {
		return Request{err: s.reject(q, q.err)}
	}
	x, err := s.acquire(c, q, nonblocking)
	if err != nil {
		return Request{err: err}
	}
	r := Request{x: x, seq: x.seq}
	x.advance(context.Background(), tryOnce)
	x.turn.Unlock()
	return r
}

// setVector makes q a call on one vector per rank.
func (q *call) setVector(kind plan.Kind, typ elemType, n int) {
	q.kind, q.typ, q.count = kind, typ, n
}

// setBuffers sets the buffers; they are the same slice or do not overlap.
func (q *call) setBuffers(send, recv []byte) {
	q.send, q.recv = send, recv
	q.inPlace = q.sameOrApart("send", send, recv)
}

// sameOrApart checks that what is sent and received are the same slice, which it reports, or do not overlap.
func (q *call) sameOrApart(what string, sent, recv []byte) (same bool) {
	switch {
	case len(sent) == 0 || len(recv) == 0:
	case &sent[0] == &recv[0]:
		return true
	case memcopy.Overlap(sent, recv):
		q.fail("%s and recv overlap without being the same slice", what)
	}
	return false
}

// setOp sets the operator, on elements of a type.
func (q *call) setOp(op Op, of reflect.Type) {
	q.op = op
	if op.exact || op.user != nil {
		q.checkOp(of)
	}
}

// checkOp checks an operator that is not for all calls and types.
func (q *call) checkOp(of reflect.Type) {
	switch u := q.op.user; {
	case u == nil:
		q.fail("ReproducibleSum is for Allreduce and Reduce that block")
	case u.typ != of: // a plan's key does not tell: types of one kind share it
		q.fail("operator %s is for %v, not for %v", u.name, u.typ, of)
	}
}

// fail notes the first mistake in the arguments.
func (q *call) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf(format, args...)
	}
}

// wantLen checks a length.
func (q *call) wantLen(what string, got, want int) {
	if got != want {
		q.fail("%s has %d elements, %d are needed", what, got, want)
	}
}

// setRoot sets the root.
func (q *call) setRoot(c *mpi.Comm, root int) (mine bool) {
	q.root = root
	if root < 0 || root >= c.Size() {
		q.fail("root %d, ranks run from 0 to %d", root, c.Size()-1)
	}
	return c.Rank() == root
}

// blocksBytes bounds what all blocks of a collective take together: no process can address more. A rank that has them all
// in its buffer has shown that they fit; others find places among them, and make room for blocks that they pass on, by the
// counts alone.
const blocksBytes = 1 << 47

// setCounts checks the counts of a collective with a block per rank and returns
// their sum and this rank's. The type of the elements is set.
func (q *call) setCounts(c *mpi.Comm, counts []int) (total, mine int) {
	if len(counts) != c.Size() {
		q.fail("there are %d counts for %d ranks", len(counts), c.Size())
		return 0, 0
	}
	most := blocksBytes / q.typ.size
	for r, n := range counts {
		switch {
		case n < 0:
			q.fail("count %d of rank %d is negative", n, r)
			return 0, 0
		case n > most-total:
			q.fail("count %d of rank %d: with those of the ranks before it that is more than %d elements of %d B, the most that can be addressed", n, r, most, q.typ.size)
			return 0, 0
		}
		total += n
	}
	q.counts[0] = counts
	q.hash = hashCounts(counts, nil)
	return total, counts[c.Rank()]
}

// hashCounts is an FNV-1a hash of lists of counts, never 0.
func hashCounts(lists ...[]int) uint64 {
	h := uint64(14695981039346656037)
	for _, counts := range lists {
		for _, n := range counts {
			h = (h ^ uint64(n)) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return h | 1
}

// Request names a nonblocking collective under way. It is a small value and
// is spent by the Wait or Test that reports the end. The zero Request has ended.
// One goroutine at a time may wait for a request: a second one waits for the first, whatever its context.
//
// Its messages make progress while this rank waits for any message, and in the background. What a round does between
// messages is done by Wait and Test of this request, and every millisecond or so in the background.
type Request struct {
	x   *execution
	seq uint32
	err error
}

// Wait blocks until this rank's part of the collective is done, or ctx ends,
// which ends the collective for all ranks. For a request that is spent it is mpi.ErrRequest at once.
func (r Request) Wait(ctx context.Context) error {
	if r.x == nil {
		return r.err
	}
	if r.spent() {
		return errSpent
	}
	r.x.turn.Lock()
	if r.spent() { // by who had the turn
		r.x.turn.Unlock()
		return errSpent
	}
	r.x.advance(ctx, untilDone)
	return r.finish()
}

// Test makes some progress and reports whether this rank's part is done.
func (r Request) Test() (bool, error) {
	if r.x == nil {
		return true, r.err
	}
	if r.spent() {
		return true, errSpent
	}
	if !r.x.turn.TryLock() {
		return false, nil // the background is at it
	}
	if r.spent() {
		r.x.turn.Unlock()
		return true, errSpent
	}
	if !r.x.advance(context.Background(), tryOnce) {
		r.x.turn.Unlock()
		return false, nil
	}
	return true, r.finish()
}

// spent reports whether the end of the request was reported before. Its execution may by now belong to another call, which
// may hold the turn for long.
func (r Request) spent() bool { return r.x.live.Load() != r.seq }

var errSpent = fmt.Errorf("collective: %w: it has been waited for already", mpi.ErrRequest)

func (r Request) finish() error {
	failed := r.x.err
	r.x.state.release(r.x)
	if failed != nil {
		return failed
	}
	return nil
}

// WaitAll waits for all requests and sets them to zero. It returns the first error in the order of rs. If buffers of others
// are in flight, that error is mpi.ErrInFlight too, and its Done is closed when all buffers are free.
func WaitAll(ctx context.Context, rs []Request) error {
	var first error
	for i, r := range rs {
		err := r.Wait(ctx)
		switch {
		case first == nil:
			first = err
		case errors.Is(err, mpi.ErrInFlight):
			first = inFlightToo(first, err)
		}
		rs[i] = Request{}
	}
	return first
}
