package collective

// Ranks of an arena that call different things, do not come, or give up.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// arenaLengths are those of vectors that go by a slot, in one piece, and round the ring. The race detector has its fill
// of pieces in the ring.
func arenaLengths() []int {
	if need.RaceDetector {
		return []int{4, 200_000}
	}
	return []int{4, 5000, 200_000}
}

// eachArenaWay runs a test of every way with three ranks, and of the one that two do differently with two. Under the
// race detector it leaves out the latter way of three.
func eachArenaWay(t *testing.T, test func(t *testing.T, way string, size int)) {
	for _, way := range arenaPlans {
		if need.RaceDetector && way == DirectPlan {
			continue
		}
		t.Run(way, func(t *testing.T) { test(t, way, 3) })
	}
	t.Run("direct of two", func(t *testing.T) { test(t, DirectPlan, 2) })
}

// One rank calls with another length: all learn who called what, whoever it is.
func TestArenaMismatch(t *testing.T) {
	t.Parallel() // mostly waits
	eachArenaWay(t, arenaMismatch)
}

func arenaMismatch(t *testing.T, way string, size int) {
	for name, op := range everyCollective {
		for _, n := range arenaLengths() {
			for odd := range size {
				if name == "barrier" {
					continue // has no length
				}
				for r, err := range inShared(t, way, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
					mine := n
					if c.Rank() == odd {
						mine++
					}
					// A rank whose part does not need the odd one may leave it.
					err := op(ctx, c, onHeap(c, mine), mine)
					if err == nil {
						err = Barrier(ctx, c)
					}
					if err := within(err, mpi.ErrMismatch); err != nil {
						return err
					}
					for _, want := range []string{fmt.Sprintf("%s of %d int32", name, n), fmt.Sprintf("%s of %d int32", name, n+1)} {
						if !strings.Contains(err.Error(), want) {
							return fmt.Errorf("%q does not say %q", err, want)
						}
					}
					return nil
				}) {
					if err != nil {
						t.Errorf("%s of %d, rank %d differs: rank %d: %v", name, n, odd, r, err)
					}
				}
			}
		}
	}
}

// A call is refused on one rank, which goes on with the next. No rank takes that for the one that it missed, as
// their turns in the arena would have it: results are right until all learn of it.
func TestArenaRefusedOnOneRank(t *testing.T) {
	t.Parallel() // mostly waits
	eachArenaWay(t, arenaRefusedOnOneRank)
}

func arenaRefusedOnOneRank(t *testing.T, way string, size int) {
	const refused, calls = 2, 3 * slots // by then those that only give are waiting for the others, too
	for name, op := range map[string]func(ctx context.Context, c *mpi.Comm, send, recv []int32) error{
		"bcast": func(ctx context.Context, c *mpi.Comm, _, recv []int32) error { return Bcast(ctx, c, recv, 0) },
		"reduce": func(ctx context.Context, c *mpi.Comm, send, recv []int32) error {
			return Reduce(ctx, c, send, recv, Max, 0)
		},
		"allreduce": func(ctx context.Context, c *mpi.Comm, send, recv []int32) error {
			return Allreduce(ctx, c, send, recv, Max)
		},
	} {
		for _, n := range arenaLengths() {
			for odd := range size {
				for r, err := range inShared(t, way, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
					send, recv, want := make([]int32, n), make([]int32, n), make([]int32, n)
					for i := range int32(calls) {
						for j := range want {
							send[j], recv[j], want[j] = i, i*int32(1-min(c.Rank(), 1)), i
						}
						if c.Rank() == odd && i == refused {
							if err := within(Bcast(ctx, c, recv, -1), ErrArgument); err != nil {
								return err
							}
							continue
						}
						if err := op(ctx, c, send, recv); err != nil {
							if !strings.Contains(err.Error(), "one of them had a call before that was refused") {
								return fmt.Errorf("%q does not say why", err)
							}
							return within(err, mpi.ErrMismatch)
						}
						if c.Rank() == 0 || name != "reduce" {
							if err := equal(fmt.Sprintf("call %d", i), recv, want); err != nil {
								return err
							}
						}
					}
					return errors.New("it has not learnt that the ranks are out of step")
				}) {
					if err != nil {
						t.Errorf("%s of %d, refused on rank %d: rank %d: %v", name, n, odd, r, err)
					}
				}
			}
		}
	}
}

// A rank does not come: the one whose context ends first gives up, and the others learn it.
func TestArenaDeadline(t *testing.T) {
	t.Parallel() // mostly waits
	eachArenaWay(t, arenaDeadline)
}

func arenaDeadline(t *testing.T, way string, size int) {
	for name, op := range everyCollective {
		for _, n := range arenaLengths() {
			var gone sync.WaitGroup
			gone.Add(size - 1)
			for r, err := range inShared(t, way, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
				if c.Rank() == size-1 {
					gone.Wait()
					return nil
				}
				defer gone.Done()
				want := mpi.ErrCancelled
				if c.Rank() == 0 {
					short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
					defer cancel()
					ctx, want = short, context.DeadlineExceeded
				}
				var err error
				for v := onHeap(c, n); err == nil; { // ranks that need nothing from the absent one run ahead, but not for ever
					err = op(ctx, c, v, n)
				}
				return within(err, want)
			}) {
				if err != nil {
					t.Errorf("%s of %d: rank %d: %v", name, n, r, err)
				}
			}
		}
	}
}

// So it is in a barrier behind a broadcast, whoever does not come: also the one that the others would follow.
func TestArenaDeadlineBehind(t *testing.T) {
	for absent := range 3 {
		var gone sync.WaitGroup
		gone.Add(2)
		var sleepers [3]atomic.Pointer[execution]
		waitsForIt := func(rank int) bool {
			x := sleepers[rank].Load()
			if x == nil {
				return false
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			return slices.Equal(x.awaited.missing(nil), []int{absent})
		}
		for r, err := range inShared(t, MemoryPlan, 3, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			if err := Bcast(ctx, c, make([]int32, 2), 1); err != nil {
				return err
			}
			if c.Rank() == absent {
				gone.Wait()
				return nil
			}
			defer gone.Done()
			sleepers[c.Rank()].Store(stateOf(c).arena.Load().sleeper)
			first, second := (absent+1)%3, (absent+2)%3
			if c.Rank() == second {
				return within(Barrier(ctx, c), mpi.ErrCancelled)
			}
			short, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			go func() {
				for look := time.Tick(time.Millisecond); !waitsForIt(first) || !waitsForIt(second); {
					select {
					case <-look:
					case <-short.Done():
						return
					}
				}
				cancel(context.DeadlineExceeded)
			}()
			return within(Barrier(short, c), context.DeadlineExceeded)
		}) {
			if err != nil {
				t.Errorf("without rank %d: rank %d: %v", absent, r, err)
			}
		}
	}
}

// A rank that gives its core away as long as it waits looks at the outside all the same: where other programs want
// the core, that is what it does for long.
func TestArenaYieldsEnd(t *testing.T) {
	aloneInArena(t, func(ctx context.Context, c *mpi.Comm) error {
		stateOf(c).arena.Load().yields = math.MaxInt
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		return within(Barrier(short, c), context.DeadlineExceeded)
	})
}

// A root gives up before anybody has read its buffer, and uses it for something else: nobody takes that for
// the message.
func TestArenaWithdrawn(t *testing.T) {
	const n = 50_000
	gone := make(chan struct{})
	for r, err := range inShared(t, DirectPlan, 3, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		v := make([]int32, n)
		if c.Rank() != 2 {
			<-gone
			return within(Bcast(ctx, c, v, 2), mpi.ErrCancelled)
		}
		defer close(gone)
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		err := Bcast(short, c, v, 2)
		for i := range v {
			v[i] = -1
		}
		return within(err, context.DeadlineExceeded)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A call that waits for its turn behind one that is given up has none: a rank that comes to the first later finds
// nothing of the second, which it would take for the rest of the first.
func TestArenaNoTurnAfterAFailure(t *testing.T) {
	const n = 3 * pieceBytes / 4 // int32s: several pieces
	gone := make(chan struct{})
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		sum := func(ctx context.Context) error {
			v := make([]int32, n)
			return Allreduce(ctx, c, v, v, Sum)
		}
		if c.Rank() == 1 {
			<-gone
			return within(sum(ctx), mpi.ErrCancelled)
		}
		defer close(gone)
		s := stateOf(c)
		short, cancel := context.WithCancel(ctx)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- sum(short) }()
		lookUntil(ctx, func() bool { return ticketsOf(c) == 1 })
		go func() { second <- sum(ctx) }()
		lookUntil(ctx, func() bool { return ticketsOf(c) == 2 })
		cancel()
		err := errors.Join(within(<-first, context.Canceled), within(<-second, mpi.ErrCancelled))
		if a := s.arena.Load(); a.turn != 1 {
			err = errors.Join(err, fmt.Errorf("%d meetings were held", a.turn))
		}
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A rank that calls collectives off does not come to make the arena: whoever is at it learns that.
func TestArenaCalledOff(t *testing.T) {
	for r, err := range onRanks(t, 3, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		s := stateOf(c)
		if c.Rank() == 2 {
			s.giveUp(c.Shadow(), s.fault(plan.Allreduce, 1, context.DeadlineExceeded))
			return nil
		}
		s.mu.Lock()
		s.watch.start(s)
		s.mu.Unlock()
		var q call
		barrierCall(&q)
		_, err := s.makeArena(ctx, c, &q)
		return within(err, mpi.ErrCancelled)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
