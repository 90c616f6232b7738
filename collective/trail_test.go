package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// givers are pairs of calls of n elements in which neither of two ranks waits for the other, by rank, and their words.
var givers = map[string]struct {
	calls [2]func(ctx context.Context, c *mpi.Comm, n int) error
	want  [2]string
}{
	"two roots": {
		[2]func(context.Context, *mpi.Comm, int) error{bcastFrom(0), bcastFrom(1)},
		[2]string{"bcast of %d int32, root 0", "bcast of %d int32, root 1"},
	},
	"a broadcast and a reduction": {
		[2]func(context.Context, *mpi.Comm, int) error{bcastFrom(0), func(ctx context.Context, c *mpi.Comm, n int) error {
			return Reduce(ctx, c, make([]int32, n), nil, Sum, 0)
		}},
		[2]string{"bcast of %d int32, root 0", "reduce of %d int32, sum, root 0"},
	},
	"a scatter and a scan": {
		[2]func(context.Context, *mpi.Comm, int) error{func(ctx context.Context, c *mpi.Comm, n int) error {
			return Scan(ctx, c, make([]int32, n), make([]int32, n), Sum)
		}, func(ctx context.Context, c *mpi.Comm, n int) error {
			return Scatter(ctx, c, make([]int32, n*c.Size()), make([]int32, n), 1)
		}},
		[2]string{"scan of %d int32, sum", "scatter of %d int32, root 1"},
	},
}

func bcastFrom(root int) func(ctx context.Context, c *mpi.Comm, n int) error {
	return func(ctx context.Context, c *mpi.Comm, n int) error { return Bcast(ctx, c, make([]int32, n), root) }
}

// eachWayOfTwo has two ranks do f by messages and in each way of an arena, on so many elements.
func eachWayOfTwo(t *testing.T, f func(n int) func(ctx context.Context, c *mpi.Comm) error) {
	for _, k := range []struct {
		way string
		n   int
	}{{"messages", 4}, {MemoryPlan, 4}, {MemoryPlan, 5000}, {DirectPlan, 5000}} {
		t.Run(fmt.Sprintf("%s/%d", k.way, k.n), func(t *testing.T) {
			var errs []error
			if k.way == "messages" {
				errs = onRanks(t, 2, mpi.LocalOptions{}, f(k.n))
			} else {
				errs = inShared(t, k.way, 2, mpi.LocalOptions{}, f(k.n))
			}
			for r, err := range errs {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// Two ranks that only give, each something else, learn who called what when they meet the next time.
func TestGiversMeetLater(t *testing.T) {
	t.Parallel() // mostly waits
	for name, k := range givers {
		t.Run(name, func(t *testing.T) {
			eachWayOfTwo(t, func(n int) func(ctx context.Context, c *mpi.Comm) error {
				return func(ctx context.Context, c *mpi.Comm) error {
					for range 3 {
						if err := Barrier(ctx, c); err != nil {
							return err
						}
					}
					err := k.calls[c.Rank()](ctx, c, n)
					if n > slotBytes/4 { // at long ones they meet
						return says(errors.Join(err, Barrier(ctx, c)), fmt.Sprintf(k.want[0], n), fmt.Sprintf(k.want[1], n))
					}
					for range 2 {
						if err == nil {
							err = bcastFrom(0)(ctx, c, n)
						}
					}
					if err == nil {
						err = Barrier(ctx, c)
					}
					return says(err, "#4 ", fmt.Sprintf(k.want[0], n), fmt.Sprintf(k.want[1], n))
				}
			})
		})
	}
}

// By option they learn it in that very call.
func TestGiversMeetAtOnce(t *testing.T) {
	t.Parallel() // mostly waits
	for name, k := range givers {
		t.Run(name, func(t *testing.T) {
			eachWayOfTwo(t, func(n int) func(ctx context.Context, c *mpi.Comm) error {
				return func(ctx context.Context, c *mpi.Comm) error {
					f := ConfigOf(c)
					f.CheckAll = true
					if err := Configure(c, f); err != nil {
						return err
					}
					return says(k.calls[c.Rank()](ctx, c, n), fmt.Sprintf(k.want[0], n), fmt.Sprintf(k.want[1], n))
				}
			})
		})
	}
}

// So they do when they never meet but in the slots that they use again.
func TestGiversMeetInSlots(t *testing.T) {
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		var err error
		for i := 0; err == nil && i <= 2*slots; i++ {
			err = bcastFrom(c.Rank())(ctx, c, 4)
		}
		return says(err, "#1 ", "bcast of 4 int32, root 0", "bcast of 4 int32, root 1")
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A nonblocking call that the look-out or Test ends finds the cause, too.
func TestNonblockingGiversMeetLater(t *testing.T) {
	t.Parallel() // mostly waits
	for r, err := range onRanks(t, 2, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		if err := Ibcast(c, make([]int32, 4), c.Rank()).Wait(ctx); err != nil {
			return err
		}
		one, done := []int32{1}, false
		var err error
		r := Iallreduce(c, one, one, Sum)
		lookUntil(ctx, func() bool { done, err = r.Test(); return done })
		return says(err, "#1 ", "bcast of 4 int32, root 0", "bcast of 4 int32, root 1")
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A past of which the first calls are forgotten names none of the later ones for them.
func TestPastIsNotMistaken(t *testing.T) {
	of := func(root, trail int) signature {
		s := (&key{kind: plan.Bcast, typ: typeOf[int32](), count: 1, root: root}).sign(0)
		s.setTrail(uint16(trail))
		return s
	}
	s := &state{rank: 1}
	s.watch.calls = make([]past, history)
	for seq, called := range map[uint32]signature{1: of(0, 0), 2: of(1, 7), 3: of(2, 8)} {
		s.watch.heard(seq, &called)
	}
	for _, k := range []struct {
		theirs []signature
		want   string
	}{
		{[]signature{of(0, 0), of(2, 7), of(1, 9)}, "in #2 rank 1 called bcast of 1 int32, root 1, rank 0 (here) called bcast of 1 int32, root 2"},
		{[]signature{{}, of(1, 6), of(3, 9)}, "rank 1 and rank 0 (here) called different things before #3"},
		{[]signature{of(0, 0), of(1, 7), of(2, 8)}, "rank 1 and rank 0 (here) called different things before #4"},
	} {
		n := news{kind: newsPast, seq: 4, text: string(slices.Concat(k.theirs[0][:], k.theirs[1][:], k.theirs[2][:]))}
		if err := says(s.compareWithPast(0, "here", n), k.want); err != nil {
			t.Error(err)
		}
	}
}

// Every difference in what was called changes the trail of all calls after it, whatever those are.
func TestTrailKeepsDifferences(t *testing.T) {
	var a, b state
	number := func(s *state, root int) uint16 {
		q := call{key: key{kind: plan.Bcast, root: root}}
		s.number(&q, q.sign(0).digest())
		return q.trail
	}
	number(&a, 0)
	number(&b, 1)
	alike := 0
	for i := range 1000 {
		if number(&a, i) == number(&b, i) {
			alike++
		}
	}
	if alike > 2 { // as 16 bits are now and then
		t.Errorf("%d of 1000 trails are the same after calls that differ", alike)
	}
}
