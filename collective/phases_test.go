package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
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

// A mismatch of calls that look alike names the plans and what all ranks must have in common, also where a call is
// blocking on some and nonblocking on others.
func TestMismatchNamesThePlans(t *testing.T) {
	const same = "all ranks must use the same Config, and all the blocking or all the nonblocking form"
	v := func() []float64 { return make([]float64, 4) }
	by := func(name string) func(context.Context, *mpi.Comm) error {
		return func(ctx context.Context, c *mpi.Comm) error {
			if err := Configure(c, Config{Force: map[plan.Kind]string{plan.Allreduce: name}}); err != nil {
				return err
			}
			return Allreduce(ctx, c, v(), v(), Sum)
		}
	}
	started := func(ctx context.Context, c *mpi.Comm) error { return Iallreduce(c, v(), v(), Sum).Wait(ctx) }
	called := func(ctx context.Context, c *mpi.Comm) error { return Allreduce(ctx, c, v(), v(), Sum) }
	for r, err := range onRanks(t, 3, mpi.LocalOptions{}, lastDiffers(by("ring"), by("doubling"), []string{"sum by ring", "sum by doubling", same})) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for r, err := range inShared(t, MemoryPlan, 3, mpi.LocalOptions{}, lastDiffers(by(DirectPlan), by(MemoryPlan), []string{"sum by direct", "sum by memory", same})) {
		if err != nil {
			t.Errorf("in shared memory: rank %d: %v", r, err)
		}
	}
	for r, err := range inShared(t, MemoryPlan, 3, mpi.LocalOptions{}, lastDiffers(started, called, []string{"sum by memory", same})) {
		if err != nil {
			t.Errorf("nonblocking on one rank: rank %d: %v", r, err)
		}
	}
}

// The names of plans are those of the collective that runs, also in a part of another.
func TestPlanNames(t *testing.T) {
	k := key{kind: plan.Reduce, typ: typeOf[float64](), op: ReproducibleSum}
	for _, c := range []struct {
		phase phase
		code  int
		want  string
	}{
		{whole, 0, plan.Planners(plan.Reduce)[0].Name},
		{comparing, 0, plan.Planners(plan.Barrier)[0].Name},
		{counting, 1, plan.Planners(plan.Alltoall)[1].Name},
		{scaling, 2, plan.Planners(plan.Allreduce)[2].Name},
		{adding, 1, plan.Planners(plan.Reduce)[1].Name},
		{whole, noOp, LibraryPlan},
		{whole, 200, "200"},
	} {
		q := call{key: k, phase: c.phase, asked: k.sign(0)}
		if got := q.sign(c.code).planName(); got != c.want {
			t.Errorf("plan %d%v is called %q, want %q", c.code, c.phase, got, c.want)
		}
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
