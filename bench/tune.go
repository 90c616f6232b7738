package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Tuned is one collective at one size, measured with each plan that fits.
type Tuned struct {
	Op        string
	Bytes     int
	Chosen    string  // what the model picks
	Predicted float64 // its price in µs
	Best      string  // what was fastest
	Times     []PlanTime
}

// PlanTime is what one plan took, in µs.
type PlanTime struct {
	Plan   string
	Median float64
}

// Of is the measured time of a plan in µs, 0 if it was not measured.
func (t Tuned) Of(name string) float64 {
	for _, x := range t.Times {
		if x.Plan == name {
			return x.Median
		}
	}
	return 0
}

// tunePasses is how often all plans take their turns, so that what else the
// machine does meets all alike; a plan's time is the least of its medians.
const tunePasses = 3

// Tune measures every plan of a collective at every size. All ranks call it;
// each gets all results. The communicator is left with the model it was given.
func Tune(ctx context.Context, c *mpi.Comm, m *plan.Model, name string, o Options, result func(Tuned)) error {
	op, ok := collectiveNamed(name)
	kind, err := plan.ParseKind(name)
	if !ok || err != nil {
		return usage("tune: %q is not a collective", name)
	}
	o.Budget /= tunePasses
	for _, size := range o.Sizes {
		if err := collective.Configure(c, collective.Config{Model: m}); err != nil {
			return err
		}
		total := size
		switch kind {
		case plan.Allgather, plan.Alltoall, plan.Gather, plan.Scatter:
			total = size * c.Size()
		}
		e := collective.Explain(kind, total, c)
		t := Tuned{Op: name, Bytes: size, Chosen: e.Plan, Predicted: e.Seconds * 1e6}
		var candidates []collective.Config
		add := func(name string, cfg collective.Config) {
			candidates = append(candidates, cfg)
			t.Times = append(t.Times, PlanTime{name, math.Inf(1)})
		}
		for _, x := range e.Candidates {
			force := collective.Config{Model: m, Force: map[plan.Kind]string{kind: x.Plan}}
			if x.Plan == e.Plan {
				force.Force = nil // as it runs: ranks may turn to another way while they are far from each other
			}
			add(x.Plan, force)
		}
		if _, ok := c.Native(); ok {
			add(collective.LibraryPlan, collective.Config{Model: m, Library: collective.LibraryAlways})
		}
		o.Sizes = []int{size}
		for range tunePasses {
			for i, candidate := range candidates {
				median, err := timePlan(ctx, c, candidate, op, o)
				if err != nil {
					return fmt.Errorf("plan %s: %w", t.Times[i].Plan, err)
				}
				t.Times[i].Median = min(t.Times[i].Median, median)
			}
		}
		for _, x := range t.Times {
			if t.Best == "" || x.Median < t.Of(t.Best) {
				t.Best = x.Plan
			}
		}
		result(t)
	}
	return collective.Configure(c, collective.Config{Model: m})
}

func collectiveNamed(name string) (collectiveOp, bool) {
	ops := collectiveOps()
	i := slices.IndexFunc(ops, func(op collectiveOp) bool { return op.name == name })
	if i < 0 {
		return collectiveOp{}, false
	}
	return ops[i], true
}

// timePlan is rank 0's median in µs, on all ranks.
func timePlan(ctx context.Context, c *mpi.Comm, cfg collective.Config, op collectiveOp, o Options) (float64, error) {
	if err := collective.Configure(c, cfg); err != nil {
		return 0, err
	}
	v := []float64{0}
	if err := measureCollective(ctx, c, op, o, func(r Row) { v[0] = r.Median }); err != nil {
		return 0, err
	}
	return v[0], collective.Bcast(ctx, c, v, 0)
}
