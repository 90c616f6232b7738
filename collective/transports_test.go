package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// assortment is a selection of everything, for transports other than the
// simulated one: collectives, plans, types, lengths around every protocol switch.
func assortment(ctx context.Context, c *mpi.Comm) error {
	cases := []reduceCase{
		caseOf("sum of float32", Sum, sumOf[float32]), caseOf("concat", concat, concatOne), caseOf("max of int16", Max, maxOf[int16]),
	}
	size := c.Size()
	for i, n := range []int{0, 1, 2, 500, 4 << 10, 70_001} {
		for j, k := range cases {
			if n > 500 && j == 1 {
				continue
			}
			if err := k.run(ctx, c, i, n, (i+j)%size, (i+j)%2 == 0); err != nil {
				return fmt.Errorf("%s, %d elements: %w", k.name, n, err)
			}
		}
		if err := moveAll[int32](ctx, c, i, n, i%size, i%2 == 0); err != nil {
			return fmt.Errorf("%d elements: %w", n, err)
		}
	}
	for _, kind := range plan.Kinds() {
		for _, f := range chosenPlans(kind) {
			f.Library = LibraryNever
			if err := reconfigure(ctx, c, f); err != nil {
				return err
			}
			for _, n := range []int{3, 9000} {
				if err := cases[0].run(ctx, c, n, n, 1%size, false); err != nil {
					return fmt.Errorf("%v, %d elements: %w", f.Force, n, err)
				}
				if err := moveAll[int64](ctx, c, n, n, 1%size, true); err != nil {
					return fmt.Errorf("%v, %d elements: %w", f.Force, n, err)
				}
			}
		}
	}
	return nil
}

// overSharedMemory runs f on n ranks of this process that share memory.
func overSharedMemory(t *testing.T, n int, f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, n), f)
}

// overTCP runs f on n ranks of this process with sockets between them.
func overTCP(t *testing.T, n int, f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	mpitest.Together(t, mpitest.TCPWorlds(t, n), f)
}

func TestAssortmentOverSharedMemory(t *testing.T) {
	// Ranks of one process spin for each other: as many as there are processors at least.
	for _, n := range atMost(2, []int{2, 3}) {
		overSharedMemory(t, n, assortment)
	}
}

func TestAssortmentOverTCP(t *testing.T) {
	for _, n := range atMost(2, []int{2, 5}) {
		overTCP(t, n, assortment)
	}
}
