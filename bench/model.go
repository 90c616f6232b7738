package bench

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// modelSizes are the points of a measured curve.
var modelSizes = []int{4, 256, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20}

// warmups is how many collectives there are before a communicator's shared memory.
const warmups = 32

// modelBudget is the time for a point of a curve.
const modelBudget = 60 * time.Millisecond

// MeasureModel measures what plans are priced by, between rank 0 and the
// first rank of its host and of another: the one-way time, the time of an exchange, what a
// core takes to reduce and to copy, and how long all take to meet in shared memory. Link classes that
// the communicator does not have keep the default's figures. All ranks call it
// and get the same model; the communicator is left with the default configuration.
func MeasureModel(ctx context.Context, c *mpi.Comm, name string) (*plan.Model, error) {
	m := collective.DefaultModel()
	m.Name = name
	near, far := -1, -1
	for r := 1; r < c.Size(); r++ {
		switch {
		case c.Host(r) == c.Host(0) && near < 0:
			near = r
		case c.Host(r) != c.Host(0) && far < 0:
			far = r
		}
	}
	for _, class := range []struct {
		peer int
		link *plan.Link
		read *plan.Curve
	}{{near, &m.Host, &m.Read}, {far, &m.Net, new(plan.Curve)}} {
		if class.peer < 0 {
			continue
		}
		link, read, err := measureLink(ctx, c, class.peer)
		if err != nil {
			return nil, err
		}
		link.Gap = class.link.Gap
		*class.link, *class.read = link, read
	}
	m.Combine, m.Copy = measureCore()
	var err error
	if m.Cross, err = measureCross(ctx, c); err != nil {
		return nil, err
	}
	if err := collective.Configure(c, collective.Config{}); err != nil {
		return nil, err
	}
	return shareModel(ctx, c, m)
}

// measureLink times single messages and exchanges between rank 0 and peer, as the
// steps of collectives that they are: by the executor, and on the scale on which
// collectives are measured; and how they read each other's memory, if they can. The others wait. Rank 0
// gets the link.
func measureLink(ctx context.Context, c *mpi.Comm, peer int) (l plan.Link, read plan.Curve, err error) {
	color := mpi.Undefined
	if c.Rank() == 0 || c.Rank() == peer {
		color = 0
	}
	pair, err := c.Split(ctx, color, c.Rank())
	if err != nil || pair == nil {
		return l, nil, err
	}
	// Which plans there are shows when the pair has done some collectives.
	for range warmups {
		if err := collective.Barrier(ctx, pair); err != nil {
			return l, nil, err
		}
	}
	copied := func(n int) float64 { return timeOf(copyOf(n)) }
	for _, way := range []struct {
		kind  plan.Kind
		plan  string
		curve *plan.Curve
		less  func(n int) float64 // what the plan does besides
	}{
		{plan.Bcast, "linear", &l.OneWay, func(int) float64 { return 0 }},
		{plan.Allgather, "ring", &l.Exchange, copied},
		{plan.Allgather, collective.DirectPlan, &read, copied},
	} {
		if !slices.Contains(collective.Plans(way.kind, modelSizes[0], pair), way.plan) {
			continue
		}
		op, _ := collectiveNamed(way.kind.String()) // there is one
		force := collective.Config{Force: map[plan.Kind]string{way.kind: way.plan}}
		times := make([]float64, len(modelSizes))
		for pass := range tunePasses {
			for i, n := range modelSizes {
				t, err := timePlan(ctx, pair, force, op, Options{Sizes: []int{n}, Budget: modelBudget / tunePasses})
				if err != nil {
					return l, nil, err
				}
				if pass == 0 || t < times[i] {
					times[i] = t
				}
			}
		}
		for i, n := range modelSizes {
			*way.curve = append(*way.curve, plan.Point{Bytes: n, Seconds: max(0, times[i]/1e6-way.less(n))})
		}
		ascend(*way.curve)
	}
	return l, read, nil
}

// ascend makes no message take longer than a longer one: what does was disturbed.
func ascend(c plan.Curve) {
	for i := len(c) - 2; i >= 0; i-- {
		c[i].Seconds = min(c[i].Seconds, c[i+1].Seconds)
	}
}

// copyOf returns the copying of n bytes.
func copyOf(n int) func() {
	a, b := make([]byte, n), make([]byte, n)
	return func() { copy(a, b) }
}

// measureCross times a meeting in shared memory of the ranks of one host, 0
// where they cannot meet. All ranks get rank 0's.
func measureCross(ctx context.Context, c *mpi.Comm) (float64, error) {
	var candidates []string
	for _, x := range collective.Explain(plan.Barrier, 0, c).Candidates {
		candidates = append(candidates, x.Plan)
	}
	if !slices.Contains(candidates, collective.MemoryPlan) {
		return 0, nil
	}
	op, _ := collectiveNamed(plan.Barrier.String()) // there is one
	best := math.Inf(1)
	for range tunePasses {
		t, err := timePlan(ctx, c, collective.Config{Force: map[plan.Kind]string{plan.Barrier: collective.MemoryPlan}}, op,
			Options{Sizes: []int{0}, Budget: modelBudget / tunePasses})
		if err != nil {
			return 0, err
		}
		best = min(best, t)
	}
	return best / 1e6, nil
}

// measureCore times what one core does by itself, on vectors that fit its
// caches and such that do not.
func measureCore() (combine, copied plan.Curve) {
	most := modelSizes[len(modelSizes)-1]
	a, b := make([]byte, most), make([]byte, most)
	sum, _ := kernel.For(kernel.Sum, kernel.Float32) // there is one
	for _, n := range modelSizes {
		x, y := a[:n], b[:n]
		combine = append(combine, plan.Point{Bytes: n, Seconds: timeOf(func() { sum(x, x, y) })})
		copied = append(copied, plan.Point{Bytes: n, Seconds: timeOf(func() { copy(x, y) })})
	}
	return combine, copied
}

// timeOf is the median time of f in seconds.
func timeOf(f func()) float64 {
	const rounds = 11
	calls := 1
	var samples []float64
	for len(samples) < rounds {
		start := time.Now()
		for range calls {
			f()
		}
		took := time.Since(start)
		if took < 200*time.Microsecond && calls < 1<<20 {
			calls *= 2
			continue
		}
		samples = append(samples, took.Seconds()/float64(calls))
	}
	return Quantile(samples, 0.5)
}

// shareModel gives every rank rank 0's model.
func shareModel(ctx context.Context, c *mpi.Comm, m *plan.Model) (*plan.Model, error) {
	cross := []float64{m.Cross}
	if err := collective.Bcast(ctx, c, cross, 0); err != nil {
		return nil, err
	}
	m.Cross = cross[0]
	curves := []*plan.Curve{&m.Host.OneWay, &m.Host.Exchange, &m.Net.OneWay, &m.Net.Exchange, &m.Combine, &m.Copy, &m.Read}
	for _, curve := range curves {
		count := []int64{int64(len(*curve))}
		if err := collective.Bcast(ctx, c, count, 0); err != nil {
			return nil, err
		}
		flat := make([]float64, 2*count[0])
		if c.Rank() == 0 {
			for i, p := range *curve {
				flat[2*i], flat[2*i+1] = float64(p.Bytes), p.Seconds
			}
		}
		if err := collective.Bcast(ctx, c, flat, 0); err != nil {
			return nil, err
		}
		*curve = make(plan.Curve, count[0])
		for i := range *curve {
			(*curve)[i] = plan.Point{Bytes: int(flat[2*i]), Seconds: flat[2*i+1]}
		}
	}
	return m, m.Check()
}
