package collective

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Of two ranks that come first by turns each knows when it is its turn. One that always comes first, or never, does not pause for
// nothing: the other would be as late, or there already.
func TestComesFirst(t *testing.T) {
	for _, test := range []struct {
		name     string
		came     []int   // the rank that came first, barrier by barrier
		expected [2]bool // whether each rank expects to come first to the next one
	}{
		{"one came first once", []int{0}, [2]bool{}},
		{"one always comes first", []int{0, 0, 0}, [2]bool{}},
		{"by turns, rank 0 is next", []int{0, 1}, [2]bool{true, false}},
		{"by turns, rank 1 is next", []int{0, 1, 0}, [2]bool{false, true}},
		{"no longer by turns", []int{0, 1, 1}, [2]bool{}},
	} {
		left := make(chan struct{})
		for r, err := range onProcessors(t, MemoryPlan, 1, []int{-1, -1}, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			me := c.Rank()
			a := stateOf(c).arena.Load()
			for _, first := range test.came {
				for me != first && atomic.LoadUint64(&a.own[sleepers]) == 0 { // until the first rank has looked in vain, and sleeps
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					osyield.Yield()
				}
				if err := Barrier(ctx, c); err != nil {
					return err
				}
				if me == 0 { // both have left, and nobody sleeps
					left <- struct{}{}
				} else {
					<-left
				}
			}
			if got := a.waited[1-me].comesFirst(); got != test.expected[me] {
				t.Errorf("%s: rank %d expects to come first: %v", test.name, me, got)
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("%s: rank %d: %v", test.name, r, err)
			}
		}
	}
}

// A rank looks on for one of another core when those of its own core have come, which might need the core for what others wait
// for, or when it waits for nobody else. It never does so for one of its own core.
func TestRunsElsewhere(t *testing.T) {
	parts := make([]*part, 5)
	for r := range parts {
		parts[r] = new(part)
	}
	a := newArena(&state{rank: 1}, parts, 2.5, []int{0, 1, 0, 1, 1})
	all := &meeting{arena: a, entry: &entry{flow: flow{needs: a.everybody()}}}
	root := &meeting{arena: a, entry: &entry{flow: flow{needs: oneRank(2)}}}
	mate := &meeting{arena: a, entry: &entry{flow: flow{needs: oneRank(3)}}}
	a.turn = 3
	for _, c := range []struct {
		comes int
		all   bool
	}{{0, false}, {3, false}, {4, true}} {
		parts[c.comes][slot(a.turn)] = a.turn
		for r := range parts {
			elsewhere := r == 0 || r == 2
			if got, want := all.runsElsewhere(r), c.all && elsewhere; got != want {
				t.Errorf("with rank %d, of all for rank %d: %v", c.comes, r, got)
			}
			if got, want := root.runsElsewhere(r), (c.all || r == 2) && elsewhere; got != want {
				t.Errorf("with rank %d, of rank 2 alone for rank %d: %v", c.comes, r, got)
			}
		}
		if mate.runsElsewhere(3) {
			t.Errorf("with rank %d: for one of its own core", c.comes)
		}
	}
	if a.turn++; all.runsElsewhere(2) {
		t.Error("those of the turn before count")
	}
}
