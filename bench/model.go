package bench

import (
	"context"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// modelSizes are the points of a measured curve.
var modelSizes = []int{4, 256, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20}

const (
	// modelPasses is how often all figures are measured in turn, so that what else the machine does
	// meets all alike; the least counts.
	modelPasses = 6
	// modelBudget is the time for a figure of one pass.
	modelBudget = 12 * time.Millisecond
	// warmups is how many collectives there are before a communicator's shared memory.
	warmups = 32
)

// gauge measures one figure.
type gauge struct {
	take func(ctx context.Context) (seconds float64, err error)
	set  func(seconds float64)
	best float64
}

// MeasureModel measures what plans are priced by, between rank 0 and the
// first rank of its host and of another: the one-way time, the time of an exchange, how they read
// each other's memory, if they can, what a core takes to reduce and to copy, how long they and all take to
// meet in shared memory, and so what it is to wait for a turn on a processor that several share. Link classes that
// the communicator does not have keep the default's figures. All ranks call it
// and get the same model; the communicator is left with what decides on plans by default.
func MeasureModel(ctx context.Context, c *mpi.Comm, name string) (*plan.Model, error) {
	return measureModel(ctx, c, name, modelSizes, modelPasses)
}

func measureModel(ctx context.Context, c *mpi.Comm, name string, sizes []int, passes int) (*plan.Model, error) {
	m := collective.DefaultModel(c)
	m.Name = name
	gauges := coreGauges(m, sizes)
	m.Pieces, m.Read, m.Mapped, m.Cross = nil, nil, nil, 0
	var pairs []*mpi.Comm // freed but after an error, when a peer may still be at it
	near, far := -1, -1
	for r := 1; r < c.Size(); r++ {
		switch networked := c.Networked(r); { // which one of the same host may be
		case !networked && c.Host(r) == c.Host(0) && near < 0:
			near = r
		case (networked || c.Host(r) != c.Host(0)) && far < 0:
			far = r
		}
	}
	for _, class := range []struct {
		peer int
		link *plan.Link
	}{{near, &m.Host}, {far, &m.Net}} {
		if class.peer < 0 {
			continue
		}
		*class.link = plan.Link{Gap: class.link.Gap}
		color := mpi.Undefined
		if c.Rank() == 0 || c.Rank() == class.peer {
			color = 0
		}
		pair, err := c.Split(ctx, color, c.Rank())
		if err != nil {
			return nil, err
		}
		if pair == nil { // this rank has nothing to measure, and waits
			continue
		}
		pairs = append(pairs, pair)
		some, err := linkGauges(ctx, pair, m, class.link, sizes)
		if err != nil {
			return nil, err
		}
		gauges = append(gauges, some...)
		if class.link == &m.Host {
			if some, err = crossGauge(ctx, pair, func(t float64) { m.Cross = t }); err != nil {
				return nil, err
			}
			gauges = append(gauges, some...)
		}
	}
	some, err := crossGauge(ctx, c, func(t float64) {
		if c.RanksPerCore() > 1 { // of the pair each has its own
			m.Switch = max(0, t-m.Cross)
		} else {
			m.Cross = t
		}
	})
	if err != nil {
		return nil, err
	}
	gauges = append(gauges, some...)
	for pass := range passes {
		for i := range gauges {
			t, err := gauges[i].take(ctx)
			if err != nil {
				return nil, err
			}
			if pass == 0 || t < gauges[i].best {
				gauges[i].best = t
			}
		}
	}
	for _, g := range gauges {
		g.set(g.best)
	}
	for _, curve := range curvesOf(m) {
		*curve = ascending(*curve)
	}
	for _, pair := range pairs {
		pair.Free()
	}
	if err := collective.Configure(c, undecided(c)); err != nil {
		return nil, err
	}
	return shareModel(ctx, c, m)
}

// curvesOf are all curves of a model.
func curvesOf(m *plan.Model) []*plan.Curve {
	return []*plan.Curve{&m.Host.OneWay, &m.Host.Exchange, &m.Net.OneWay, &m.Net.Exchange, &m.Combine, &m.Copy, &m.Pieces, &m.Read, &m.Mapped}
}

// linkGauges time single messages and exchanges between the two ranks of a pair, as the
// steps of collectives that they are: by the executor, and on the scale on which
// collectives are measured; and their exchanges through shared memory and by reading, on one host.
func linkGauges(ctx context.Context, pair *mpi.Comm, m *plan.Model, link *plan.Link, sizes []int) ([]gauge, error) {
	if err := meet(ctx, pair); err != nil {
		return nil, err
	}
	var gauges []gauge
	for _, way := range []struct {
		kind  plan.Kind
		plan  string
		in    memory
		curve *plan.Curve
	}{
		{plan.Bcast, "linear", heap{}, &link.OneWay},
		{plan.Allgather, "ring", heap{}, &link.Exchange},
		{plan.Allgather, collective.MemoryPlan, heap{}, &m.Pieces},
		{plan.Allgather, collective.DirectPlan, heap{}, &m.Read},
		{plan.Allgather, collective.DirectPlan, shared{}, &m.Mapped},
	} {
		if !slices.Contains(collective.Plans(way.kind, sizes[0], pair), way.plan) {
			continue
		}
		op, _ := collectiveNamed(way.kind.String()) // there is one
		force := undecided(pair)
		force.Force = map[plan.Kind]string{way.kind: way.plan}
		for _, n := range sizes {
			gauges = append(gauges, gauge{
				take: func(ctx context.Context) (float64, error) {
					t, err := timePlan(ctx, pair, force, op, way.in, Options{Sizes: []int{n}, Budget: modelBudget})
					return t / 1e6, err
				},
				set: func(t float64) {
					if way.kind == plan.Allgather {
						t -= m.Copy.At(n) // of the rank's own block, which has been measured
					}
					*way.curve = append(*way.curve, plan.Point{Bytes: n, Seconds: max(0, t)})
				},
			})
		}
	}
	return gauges, nil
}

// meet holds so many collectives that it shows which ways to do them there are.
func meet(ctx context.Context, c *mpi.Comm) error {
	for range warmups {
		if err := collective.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// ascending is the curve on which no message takes longer than a longer one: what does was disturbed. A
// curve that was not measured is the default's, which others read.
func ascending(c plan.Curve) plan.Curve {
	c = slices.Clone(c)
	for i := len(c) - 2; i >= 0; i-- {
		c[i].Seconds = min(c[i].Seconds, c[i+1].Seconds)
	}
	return c
}

// crossGauge times a meeting in shared memory of the ranks of one host, if they can meet.
func crossGauge(ctx context.Context, c *mpi.Comm, set func(seconds float64)) ([]gauge, error) {
	if err := meet(ctx, c); err != nil {
		return nil, err
	}
	if !slices.Contains(collective.Plans(plan.Barrier, 0, c), collective.MemoryPlan) {
		return nil, nil
	}
	op, _ := collectiveNamed(plan.Barrier.String()) // there is one
	force := undecided(c)
	force.Force = map[plan.Kind]string{plan.Barrier: collective.MemoryPlan}
	return []gauge{{
		take: func(ctx context.Context) (float64, error) {
			t, err := timePlan(ctx, c, force, op, heap{}, Options{Sizes: []int{0}, Budget: modelBudget})
			return t / 1e6, err
		},
		set: set,
	}}, nil
}

// coreGauges time what one core does by itself, on vectors that fit its
// caches and such that do not.
func coreGauges(m *plan.Model, sizes []int) []gauge {
	most := sizes[len(sizes)-1]
	a, b := make([]byte, most), make([]byte, most)
	sum, _ := kernel.For(kernel.Sum, kernel.Float32) // there is one
	m.Combine, m.Copy = nil, nil
	var gauges []gauge
	for _, n := range sizes {
		x, y := a[:n], b[:n]
		for _, work := range []struct {
			curve *plan.Curve
			do    func()
		}{
			{&m.Combine, func() { sum(x, x, y) }},
			{&m.Copy, func() { memcopy.Copy(x, y) }},
		} {
			gauges = append(gauges, gauge{
				take: func(context.Context) (float64, error) { return timeOf(work.do), nil },
				set:  func(t float64) { *work.curve = append(*work.curve, plan.Point{Bytes: n, Seconds: t}) },
			})
		}
	}
	return gauges
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
	meeting := []float64{m.Cross, m.Switch}
	if err := collective.Bcast(ctx, c, meeting, 0); err != nil {
		return nil, err
	}
	m.Cross, m.Switch = meeting[0], meeting[1]
	for _, curve := range curvesOf(m) {
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
