package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Tuned is one collective at one size, measured with each plan that fits.
type Tuned struct {
	Op        string
	Bytes     int
	Total     int // bytes of all blocks together
	Ranks     int
	Hosts     int     // as plans count them: ranks that talk over the network are each on one of their own
	Transport string  // as collective.Place has it
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

// tunePasses is how often all plans of all points take their turns, so that what else the
// machine does meets all alike; a plan's time is the least of its medians.
const tunePasses = 5

// point is a collective at a size while it is measured.
type point struct {
	Tuned
	op    collectiveOp
	kind  plan.Kind
	plans []collective.Config // the configuration for each of Times
}

// Rule is the best plan as a rule of a site file.
func (t Tuned) Rule() collective.Rule {
	return collective.Rule{Collective: t.Op, Ranks: t.Ranks, Hosts: t.Hosts, UpToBytes: t.Total, Plan: t.Best, Transport: t.Transport}
}

// CheckCases finds what of the named collectives and sizes in bytes Tune and CheckModel cannot measure, before there are
// ranks. The error is ErrUsage, but where this machine has no memory for a size.
func CheckCases(names []string, sizes []int) error {
	for _, name := range names {
		if _, ok := collectiveNamed(name); !ok {
			return unmeasured(name)
		}
	}
	for _, n := range sizes {
		if err := wholeElements(n); err != nil {
			return err
		}
		if err := affords(n); err != nil {
			return err
		}
	}
	return nil
}

func unmeasured(name string) error {
	var names []string
	for _, op := range collectiveOps() {
		names = append(names, op.name)
	}
	return usage("%s is not measured; these are: %s", name, strings.Join(names, ", "))
}

// Tune measures every plan of the named collectives at every size, and the system library's collective where there is one,
// on vectors of the ranks' own memory: vectors from mpi.Alloc are read directly, whichever plan is best for others. All
// ranks call it; each gets all results. The communicator is left with the model it was given. One rank alone is ErrUsage.
func Tune(ctx context.Context, c *mpi.Comm, m *plan.Model, names []string, o Options) ([]Tuned, error) {
	points, err := newPoints(ctx, c, m, names, o.Sizes)
	if err != nil {
		return nil, err
	}
	at, err := newPlace(ctx, c, perPass(o.Budget, tunePasses))
	if err != nil {
		return nil, err
	}
	if err := measurePoints(ctx, c, at, points, o, func() error { return nil }); err != nil {
		return nil, err
	}
	return tuned(c, m, points)
}

func newPoints(ctx context.Context, c *mpi.Comm, m *plan.Model, names []string, sizes []int) ([]point, error) {
	if err := several(c.Size()); err != nil {
		return nil, err
	}
	if err := collective.Configure(c, undecided(c)); err != nil {
		return nil, err
	}
	if err := meet(ctx, c); err != nil {
		return nil, err
	}
	var points []point
	for _, name := range names {
		kind, err := plan.ParseKind(name)
		if err != nil {
			return nil, unmeasured(name)
		}
		for _, size := range SizesOf(kind, sizes) {
			p, err := newPoint(c, m, name, size)
			if err != nil {
				return nil, err
			}
			points = append(points, p)
		}
	}
	return points, nil
}

// several refuses one rank alone, which has nobody to exchange anything with.
func several(ranks int) error {
	if ranks < 2 {
		return usage("plans and their model on %d rank: at least 2 are needed", ranks)
	}
	return nil
}

// perPass is one pass's part of a budget: not 0, which stands for OSU's calls, unless the budget is.
func perPass(budget time.Duration, passes int) time.Duration {
	return min(budget, max(1, budget/time.Duration(passes)))
}

// measurePoints has all plans of all points take their turns at a place, and something else after each pass.
func measurePoints(ctx context.Context, c *mpi.Comm, at *place, points []point, o Options, between func() error) error {
	o.Budget = perPass(o.Budget, tunePasses)
	for range tunePasses {
		for i := range points {
			if err := points[i].measure(ctx, c, at, o); err != nil {
				return err
			}
		}
		if err := between(); err != nil {
			return err
		}
	}
	return nil
}

// tuned returns the results, with the plan that was best of each, and leaves the communicator with the model.
func tuned(c *mpi.Comm, m *plan.Model, points []point) ([]Tuned, error) {
	var all []Tuned
	for _, p := range points {
		for _, x := range p.Times {
			if p.Best == "" || x.Median < p.Of(p.Best) {
				p.Best = x.Plan
			}
		}
		all = append(all, p.Tuned)
	}
	left := undecided(c)
	left.Model = m
	return all, collective.Configure(c, left)
}

// undecided is how c is configured, without what decides on plans.
func undecided(c *mpi.Comm) collective.Config {
	f := collective.ConfigOf(c)
	f.Model, f.Site, f.Force, f.Library = nil, nil, nil, collective.LibraryAuto
	return f
}

func newPoint(c *mpi.Comm, m *plan.Model, name string, size int) (point, error) {
	op, ok := collectiveNamed(name)
	kind, err := plan.ParseKind(name)
	if !ok || err != nil {
		return point{}, unmeasured(name)
	}
	p := point{Tuned: Tuned{Op: name, Bytes: size, Total: op.total(size, c.Size())}, op: op, kind: kind}
	e, err := p.choose(c, m)
	if err != nil {
		return point{}, err
	}
	own := collective.ConfigOf(c)
	add := func(name string, f collective.Config) {
		p.plans = append(p.plans, f)
		p.Times = append(p.Times, PlanTime{name, math.Inf(1)})
	}
	for _, x := range e.Candidates {
		f := own
		if x.Plan != p.Chosen { // the chosen plan is not forced, so that it may turn to another way while ranks are far from each other
			f.Force = map[plan.Kind]string{kind: x.Plan}
		}
		add(x.Plan, f)
	}
	if _, ok := c.Native(); ok {
		f := own
		f.Library = collective.LibraryAlways
		add(collective.LibraryPlan, f)
	}
	return p, nil
}

// choose has a model choose the plan and say its price.
func (p *point) choose(c *mpi.Comm, m *plan.Model) (collective.Explanation, error) {
	own := undecided(c)
	own.Model, own.Library = m, collective.LibraryNever
	if err := collective.Configure(c, own); err != nil {
		return collective.Explanation{}, err
	}
	e := collective.Explain(p.kind, p.Total, c)
	p.Ranks, p.Hosts, p.Transport, p.Chosen, p.Predicted = e.Ranks, e.Hosts, e.Transport, e.Plan, e.Seconds*1e6
	return e, nil
}

// measure lets each plan take its turn.
func (p *point) measure(ctx context.Context, c *mpi.Comm, at *place, o Options) error {
	o.Sizes = []int{p.Bytes}
	for i, f := range p.plans {
		median, err := at.timePlan(ctx, c, f, p.op, heap{}, o)
		if err != nil {
			return fmt.Errorf("%s of %d B by %s: %w", p.Op, p.Bytes, p.Times[i].Plan, err)
		}
		p.Times[i].Median = min(p.Times[i].Median, median)
	}
	return nil
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
func timePlan(ctx context.Context, c *mpi.Comm, cfg collective.Config, op collectiveOp, in memory, o Options) (float64, error) {
	if err := collective.Configure(c, cfg); err != nil {
		return 0, err
	}
	v := []float64{0}
	if err := measureCollective(ctx, c, op, in, o, func(r Row) { v[0] = r.Median }); err != nil {
		return 0, err
	}
	return v[0], collective.Bcast(ctx, c, v, 0)
}
