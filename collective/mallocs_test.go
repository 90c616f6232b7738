package collective

// Nothing is allocated per call after the first of its shape, whatever the call and its way.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// By messages, of short vectors. Mallocs of all ranks are counted, since testing.AllocsPerRun would run them on one processor.
func TestNoAllocationByMessages(t *testing.T) {
	allocating(t)
	together(t, 2, func(_ context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{StallAfter: -1, Force: forceWay("messages")}); err != nil {
			return err
		}
		return allocateNothing(c, onHeap(c, longCall), everyCall(), 200, 0)
	})
}

// In shared memory: of short vectors by slots, of long ones by pieces, or direct.
func TestNoAllocationInSharedMemory(t *testing.T) {
	allocating(t)
	for _, way := range arenaPlans {
		t.Run(way, func(t *testing.T) {
			calls := maps.Clone(everyCollective)
			maps.DeleteFunc(calls, func(name string, _ caller) bool {
				return way == DirectPlan && slices.Contains([]string{"bcast", "gather", "scatter"}, name) // which goes by messages of the simulated fabric, then
			})
			for r, err := range inShared(t, way, 2, mpi.LocalOptions{}, func(_ context.Context, c *mpi.Comm) error {
				return allocateNothing(c, onHeap(c, longCall), calls, 1000, 20)
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// Where ranks share memory that they map from each other, and send messages through it.
func TestNoAllocationWhereMapped(t *testing.T) {
	allocating(t)
	overSharedMemory(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Model: mappedModel()}); err != nil {
			return err
		}
		v, err := onSlab(c, longCall)
		if err == nil {
			err = agreeToMap(ctx, c, v)
		}
		if err != nil {
			return err
		}
		return allocateNothing(c, v, everyCall(), 100, 20)
	})
}

// A rank that sleeps in a collective allocates nothing either.
func TestNoAllocationPerSleep(t *testing.T) {
	allocating(t)
	const calls = 1000
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, func(_ context.Context, c *mpi.Comm) error {
		a := stateOf(c).arena.Load()
		a.spins, a.yields = 0, 0
		return allocateNothing(c, vectors{}, map[string]caller{"barrier": everyCollective["barrier"]}, calls, 0)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// allocating skips a test of allocations where there are others.
func allocating(t *testing.T) {
	t.Helper()
	if need.RaceDetector {
		t.Skip("the race detector allocates")
	}
}

// longCall elements of each rank are a long vector, of several pieces.
const longCall = 3 * pieceBytes / 4

// allocateNothing has rank 0 fail if a collective allocates in so many calls of short vectors and of long ones. A barrier
// follows each: what a rank sends that runs ahead others would have to keep.
func allocateNothing(c *mpi.Comm, v vectors, collectives map[string]caller, short, long int) error {
	ctx := context.Background() // over the simulated fabric one that can end costs an allocation per wait
	var found error
	for _, shape := range []struct{ elements, calls int }{{2, short}, {longCall, long}} {
		for _, name := range slices.Sorted(maps.Keys(collectives)) {
			n, err := leastMallocs(shape.calls, func() error {
				if err := collectives[name](ctx, c, v, shape.elements); err != nil {
					return err
				}
				return Barrier(ctx, c)
			})
			if err != nil {
				return fmt.Errorf("%s of %d elements: %w", name, shape.elements, err)
			}
			if strings.HasSuffix(name, "v") { // the caller makes a list of lengths on each rank
				n -= min(n, uint64(c.Size()*shape.calls))
			}
			if most := uint64(max(8, shape.calls/10)); c.Rank() == 0 && n > most { // a few are the runtime's
				found = errors.Join(found, fmt.Errorf("%s of %d elements: %d mallocs in %d calls", name, shape.elements, n, shape.calls))
			}
		}
	}
	return found
}

// leastMallocs counts the allocations of the whole process in so many calls, of several stretches in that with
// the fewest: what is kept for use again is made at first, and more of it when a rank runs ahead of the others.
func leastMallocs(calls int, call func() error) (uint64, error) {
	const stretches = 8
	least := uint64(math.MaxUint64)
	for range stretches {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			if err := call(); err != nil {
				return 0, err
			}
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least, nil
}
