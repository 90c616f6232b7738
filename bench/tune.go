package bench

import (
	"context"
	"fmt"

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

// Tune measures every plan of a collective at every size. All ranks call it;
// each gets all results. The communicator is left with the model it was given.
func Tune(ctx context.Context, c *mpi.Comm, m *plan.Model, name string, o Options, result func(Tuned)) error {
	var op collectiveOp
	for _, x := range collectiveOps() {
		if x.name == name {
			op = x
		}
	}
	kind, err := plan.ParseKind(name)
	if op.call == nil || err != nil {
		return usage("tune: %q is not a collective", name)
	}
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
		candidates := []collective.Config{}
		names := []string{}
		for _, x := range e.Candidates {
			candidates = append(candidates, collective.Config{Model: m, Force: map[plan.Kind]string{kind: x.Plan}})
			names = append(names, x.Plan)
		}
		if _, ok := c.Native(); ok {
			candidates = append(candidates, collective.Config{Model: m, Library: collective.LibraryAlways})
			names = append(names, collective.LibraryPlan)
		}
		for i, candidate := range candidates {
			if err := collective.Configure(c, candidate); err != nil {
				return err
			}
			var median float64
			one := o
			one.Sizes = []int{size}
			if err := measureCollective(ctx, c, op, one, func(r Row) { median = r.Median }); err != nil {
				return fmt.Errorf("plan %s: %w", names[i], err)
			}
			v := []float64{median}
			if err := collective.Bcast(ctx, c, v, 0); err != nil {
				return err
			}
			t.Times = append(t.Times, PlanTime{names[i], v[0]})
			if t.Best == "" || v[0] < t.Of(t.Best) {
				t.Best = names[i]
			}
		}
		result(t)
	}
	return collective.Configure(c, collective.Config{Model: m})
}
