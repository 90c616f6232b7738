package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// A mismatch names what the program called, also where that takes several collectives that nobody has called.
func TestMismatchNamesTheWhole(t *testing.T) {
	reproduced := func(ctx context.Context, c *mpi.Comm) error {
		return Allreduce(ctx, c, make([]float64, 4), make([]float64, 4), ReproducibleSum)
	}
	rooted := func(ctx context.Context, c *mpi.Comm) error {
		return Reduce(ctx, c, make([]float32, 4), make([]float32, 4), ReproducibleSum, 1)
	}
	summed := func(ctx context.Context, c *mpi.Comm) error {
		return Allreduce(ctx, c, make([]float64, 4), make([]float64, 4), Sum)
	}
	// What the first part of the sums is, called by the program itself.
	scaled := func(ctx context.Context, c *mpi.Comm) error {
		return Allreduce(ctx, c, make([]uint16, 4), make([]uint16, 4), magnitudeOp)
	}
	const size = 3
	for _, k := range []struct {
		name       string
		odd, other func(context.Context, *mpi.Comm) error
		want       []string
	}{
		{"sum", summed, reproduced, []string{"allreduce of 4 float64, sum", "allreduce of 4 float64, reproducible sum"}},
		{"to a root", summed, rooted, []string{"allreduce of 4 float64, sum", "reduce of 4 float32, reproducible sum, root 1"}},
		{"both", reproduced, rooted, []string{"allreduce of 4 float64, reproducible sum", "reduce of 4 float32, reproducible sum, root 1"}},
		{"its part", scaled, reproduced, []string{"allreduce of 4 uint16", "allreduce of 4 float64, reproducible sum"}},
	} {
		odd := lastDiffers(k.odd, k.other, k.want)
		t.Run(k.name, func(t *testing.T) {
			for r, err := range onRanks(t, size, mpi.LocalOptions{}, odd) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			for r, err := range inShared(t, MemoryPlan, size, mpi.LocalOptions{}, odd) {
				if err != nil {
					t.Errorf("in shared memory: rank %d: %v", r, err)
				}
			}
		})
	}
}

// The arena is made with the first part of a reproducible sum, and the calls that follow meet in it.
func TestArenaIsMadeWithinASum(t *testing.T) {
	spinning(2, func() {
		overSharedMemory(t, 2, func(ctx context.Context, c *mpi.Comm) error {
			for range arenaAfter {
				if err := Barrier(ctx, c); err != nil {
					return err
				}
			}
			sum := make([]float64, 1)
			for i := range 3 {
				if err := Allreduce(ctx, c, []float64{0.5}, sum, ReproducibleSum); err != nil {
					return err
				}
				if err := equal(fmt.Sprintf("sum %d", i), sum, []float64{1}); err != nil {
					return err
				}
			}
			if stateOf(c).arena.Load() == nil {
				return fmt.Errorf("there is no arena")
			}
			return nil
		})
	})
}
