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

// modelSizes are the points of a measured curve. Between 256 and 512 bytes vectors leave the slots of shared memory.
var modelSizes = []int{4, 256, 512, 2 << 10, 4 << 10, 8 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 32 << 20}

const (
	// modelPasses is how often all figures are measured in turn, so that what else the machine does
	// meets all alike; the least counts.
	modelPasses = 6
	// warmups is how many collectives meet holds: more than a communicator does before it has its shared memory.
	warmups = 32
)

// gauge measures one figure.
type gauge struct {
	take func(ctx context.Context) (seconds float64, err error)
	set  func(seconds float64)
	best float64
}

// survey measures a model, as often as its figures are asked for.
type survey struct {
	c      *mpi.Comm
	budget time.Duration // for a figure of one pass
	m      *plan.Model   // the default's figures, but for those that are measured
	gauges []gauge
	place  *place
	pairs  []*mpi.Comm // freed at the end, but not after an error: a peer may still use them then
	lent   []*lent     // memory with which the pairs measure
	passes int
	check  Check // of the next pass
}

// MeasureModel measures what plans are priced by. Rank 0 takes figures with the first rank of its own host and with the
// first of another: the time of a message one way and that of an exchange; if they can, how they read each other's memory
// and combine what comes from there; and how long they, and all ranks, take to meet in shared memory, from which follows
// how long a rank waits for its turn on a processor that several share. What a core takes to reduce and to copy is
// measured, too. Where the two ranks of one host have but one processor, the figures hold what sharing it costs, as
// plan.Model.Switch says by 0. Link classes that the communicator does not have keep the default's figures.
//
// The budget is the time for each figure of messages, of which there are some 170; what a core does by itself takes some
// milliseconds, whatever the budget. Two ranks of one host take their figures where their processors are most of the time.
// If the processors are moved, they wait for them to return there, for as long as they measure at most (place.go). All
// ranks call it and get the same model; the communicator is left with what decides on plans by default. One rank alone is
// ErrUsage.
func MeasureModel(ctx context.Context, c *mpi.Comm, name string, budget time.Duration) (*plan.Model, error) {
	return measureModel(ctx, c, name, budget, modelSizes, modelPasses)
}

func measureModel(ctx context.Context, c *mpi.Comm, name string, budget time.Duration, sizes []int, passes int) (*plan.Model, error) {
	s, err := newSurvey(ctx, c, name, perPass(budget, passes), sizes)
	if err != nil {
		return nil, err
	}
	if err := s.pass(ctx, passes); err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	return s.model(ctx)
}

// newSurvey readies the measurements. Collective, as are its methods.
func newSurvey(ctx context.Context, c *mpi.Comm, name string, budget time.Duration, sizes []int) (*survey, error) {
	if err := several(c.Size()); err != nil {
		return nil, err
	}
	if err := collective.Configure(c, undecided(c)); err != nil { // before the ranks meet, which settles the ways there are
		return nil, err
	}
	m := collective.DefaultModel(c)
	m.Name = name
	m.Folded, m.Merged, m.Settled, m.Gathered, m.Scattered = nil, nil, nil, nil, nil
	m.Pieces, m.Given, m.Read, m.Mapped, m.Cross = nil, nil, nil, nil, 0
	near, far := neighbours(c)
	turns := near >= 0 && c.TakeTurns(0, near)
	share := 1.0
	if turns {
		m.Switch, share = 0, 2
	}
	at, err := newPlace(ctx, c, budget)
	if err != nil {
		return nil, err
	}
	s := &survey{c: c, budget: budget, m: m, gauges: coreGauges(m, sizes, share), place: at}
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
		s.pairs = append(s.pairs, pair)
		some, err := s.linkGauges(ctx, pair, class.link, sizes)
		if err != nil {
			return nil, err
		}
		s.gauges = append(s.gauges, some...)
		if class.link == &m.Host {
			if some, err = s.crossGauge(ctx, pair, func(t float64) { m.Cross = t }); err != nil {
				return nil, err
			}
			s.gauges = append(s.gauges, some...)
		}
	}
	some, err := s.crossGauge(ctx, c, func(t float64) {
		if c.RanksPerCore() > 1 && !turns { // of the pair each has its own
			m.Switch = max(0, t-m.Cross)
		} else {
			m.Cross = t
		}
	})
	if err != nil {
		return nil, err
	}
	s.gauges = append(s.gauges, some...)
	return s, nil
}

// neighbours are the first other rank of rank 0's host, one that need not take turns with it if there is any, and the first
// rank that is reached over the network; -1 where there is none.
func neighbours(c *mpi.Comm) (near, far int) {
	near, far = -1, -1
	for r := 1; r < c.Size(); r++ {
		switch apart := c.Networked(r) || c.Host(r) != c.Host(0); { // networked may be one of the same host
		case apart && far < 0:
			far = r
		case !apart && (near < 0 || c.TakeTurns(0, near) && !c.TakeTurns(0, r)):
			near = r
		}
	}
	return near, far
}

// pass takes all figures so many times more.
func (s *survey) pass(ctx context.Context, times int) error {
	for range times {
		for i := range s.gauges {
			g := &s.gauges[i]
			t, err := g.take(ctx)
			if err != nil {
				return err
			}
			if s.passes == 0 || t < g.best {
				g.best = t
			}
		}
		s.passes++
		s.check = checked
	}
	return nil
}

// model is what the passes have shown so far.
func (s *survey) model(ctx context.Context) (*plan.Model, error) {
	for _, g := range s.gauges {
		g.set(g.best)
	}
	m := s.m.Clone()
	for _, c := range m.Curves() {
		*c.Curve = ascending(*c.Curve)
	}
	if err := collective.Configure(s.c, undecided(s.c)); err != nil {
		return nil, err
	}
	return shareModel(ctx, s.c, m)
}

// end frees what the survey has made.
func (s *survey) end() error {
	for _, l := range s.lent {
		if err := l.end(); err != nil {
			return err
		}
	}
	for _, pair := range s.pairs {
		pair.Free()
	}
	return nil
}

// at puts a figure into a curve, whose points are measured in ascending order, in place of an earlier one.
func at(c *plan.Curve, bytes int, seconds float64) {
	for i := range *c {
		if (*c)[i].Bytes == bytes {
			(*c)[i].Seconds = seconds
			return
		}
	}
	*c = append(*c, plan.Point{Bytes: bytes, Seconds: seconds})
}

// linkGauges time single messages and exchanges between the two ranks of a pair. They are done by the executor, as steps of
// collectives are, and timed as collectives are. On one host they also time exchanges through shared memory and by reading.
func (s *survey) linkGauges(ctx context.Context, pair *mpi.Comm, link *plan.Link, sizes []int) ([]gauge, error) {
	m := s.m
	if err := meet(ctx, pair); err != nil {
		return nil, err
	}
	own, mapped := &lent{of: heap{}, c: pair}, &lent{of: shared{}, c: pair}
	s.lent = append(s.lent, own, mapped)
	var gauges []gauge
	for _, way := range []struct {
		kind  plan.Kind
		plan  string
		in    memory
		curve *plan.Curve
	}{
		{plan.Bcast, "linear", own, &link.OneWay},
		{plan.Allgather, "ring", own, &link.Exchange},
		{plan.Reduce, "binomial", own, &m.Folded},
		{plan.ReduceScatter, "circulant", own, &m.Merged},
		{plan.Allgather, "ring", own, &m.Settled},
		{plan.Gather, "linear", own, &m.Gathered},
		{plan.Scatter, "linear", own, &m.Scattered},
		{plan.Allgather, collective.MemoryPlan, own, &m.Pieces},
		{plan.Bcast, collective.MemoryPlan, own, &m.Given},
		{plan.Allgather, collective.DirectPlan, own, &m.Read},
		{plan.Allgather, collective.DirectPlan, mapped, &m.Mapped},
	} {
		if !slices.Contains(collective.Plans(way.kind, sizes[0], pair), way.plan) {
			continue
		}
		if link != &m.Host && way.curve != &link.OneWay && way.curve != &link.Exchange { // what comes over a network lies in no other rank's caches
			continue
		}
		op, _ := collectiveNamed(way.kind.String()) // there is one
		if way.curve == &link.Exchange {
			op.call = allgatherFresh
		}
		force := undecided(pair)
		force.Force = map[plan.Kind]string{way.kind: way.plan}
		for _, n := range sizes {
			size := n
			if way.kind == plan.ReduceScatter { // of which each sends half
				size *= 2
			}
			gauges = append(gauges, gauge{
				take: func(ctx context.Context) (float64, error) {
					t, err := s.place.timePlan(ctx, pair, force, op, way.in, Options{Sizes: []int{size}, Budget: s.budget, Check: s.check})
					return t / 1e6, err
				},
				set: func(t float64) {
					switch way.kind { // less what has been measured
					case plan.Allgather:
						t -= m.Copy.At(n) // of the rank's own block
					case plan.Reduce:
						t -= link.OneWay.At(n)
					}
					at(way.curve, n, max(0, t))
				},
			})
		}
	}
	return gauges, nil
}

// allgatherFresh is an allgather of blocks that have just been written, as has most of what ranks exchange within a
// collective: the lines are in the caches of their writer, and take longer to read than lines that have been read before.
func allgatherFresh(v *vectors, ctx context.Context) error {
	own := v.recv[v.c.Rank()*v.n:][:v.n]
	copy(own, v.send)
	return collective.Allgather(ctx, v.c, own, v.recv)
}

// ascending returns a copy of the curve on which no message takes longer than a longer one: a time that does was disturbed.
func ascending(c plan.Curve) plan.Curve {
	c = slices.Clone(c)
	for i := len(c) - 2; i >= 0; i-- {
		c[i].Seconds = min(c[i].Seconds, c[i+1].Seconds)
	}
	return c
}

// crossGauge times a meeting in shared memory of the ranks of one host, if they can meet.
func (s *survey) crossGauge(ctx context.Context, c *mpi.Comm, set func(seconds float64)) ([]gauge, error) {
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
			t, err := s.place.timePlan(ctx, c, force, op, heap{}, Options{Sizes: []int{0}, Budget: s.budget})
			return t / 1e6, err
		},
		set: set,
	}}, nil
}

// coreGauges time what one core does by itself, on vectors that fit its caches and on vectors that do not. While messages
// are timed the core is divided among so many ranks, but not while these figures are: they are multiplied by that.
func coreGauges(m *plan.Model, sizes []int, ranks float64) []gauge {
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
				set:  func(t float64) { at(work.curve, n, ranks*t) },
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
	for _, named := range m.Curves() {
		curve := named.Curve
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
