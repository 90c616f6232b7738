package collective

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Communicators begin with the configuration of the one that they are made of, and have their own from then on.
func TestConfigIsInherited(t *testing.T) {
	together(t, 4, func(ctx context.Context, c *mpi.Comm) error {
		log := slog.New(slog.DiscardHandler)
		nodes := plan.NewNodes(4, func(rank int) string { return fmt.Sprint(rank) })
		if err := Configure(c, Config{Force: map[plan.Kind]string{plan.Allreduce: "ring"}, Log: log, Nodes: nodes}); err != nil {
			return err
		}
		for _, derive := range []func() (*mpi.Comm, error){
			func() (*mpi.Comm, error) { return c.Dup(ctx) },
			func() (*mpi.Comm, error) { return c.Split(ctx, 0, -c.Rank()) },
			func() (*mpi.Comm, error) { return c.Shrink(ctx) },
		} {
			made, err := derive()
			if err != nil {
				return err
			}
			if e := Explain(plan.Allreduce, 1<<20, made); e.Plan != "ring" || e.Why != "forced" || e.Hosts != 2 {
				return fmt.Errorf("%v: %v", made, e)
			}
			if f := ConfigOf(made); f.Log != log || f.Nodes != nil || f.Model != nil {
				return fmt.Errorf("%v: %+v", made, f)
			}
			if err := Configure(made, Config{}); err != nil {
				return err
			}
			made.Free()
		}
		if f := ConfigOf(c); f.Force[plan.Allreduce] != "ring" || f.Nodes != nodes {
			return fmt.Errorf("the parent's became %+v", f)
		}
		return nil
	})
}

// A map of hosts that is of other ranks is refused before plans are made by it.
func TestConfigOfOtherRanks(t *testing.T) {
	together(t, 3, func(ctx context.Context, c *mpi.Comm) error {
		for _, size := range []int{0, 2, 4} {
			nodes := plan.NewNodes(size, func(rank int) string { return fmt.Sprint(rank % 2) })
			if err := within(Configure(c, Config{Nodes: nodes}), ErrArgument); err != nil {
				return fmt.Errorf("%d ranks: %w", size, err)
			}
		}
		v := make([]int32, 100_000)
		return Allreduce(ctx, c, v, v, Sum)
	})
}
