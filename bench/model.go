package bench

import (
	"context"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// modelSizes are the points of a measured curve.
var modelSizes = []int{4, 256, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20}

const (
	tagModel    = 1100
	modelBudget = 60 * time.Millisecond
)

// MeasureModel measures what plans are priced by, between rank 0 and the
// first rank of its host and of another: the one-way time, the time of an exchange, and what a
// core takes to reduce and to copy. Link classes that the communicator does not
// have keep the default's figures. All ranks call it and get the same model.
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
	}{{near, &m.Host}, {far, &m.Net}} {
		if class.peer < 0 {
			continue
		}
		link, err := measureLink(ctx, c, class.peer)
		if err != nil {
			return nil, err
		}
		link.Gap = class.link.Gap
		*class.link = link
	}
	m.Combine, m.Copy = measureCore()
	return shareModel(ctx, c, m)
}

// measureLink times messages between rank 0 and peer; the others wait.
func measureLink(ctx context.Context, c *mpi.Comm, peer int) (plan.Link, error) {
	var l plan.Link
	most := modelSizes[len(modelSizes)-1]
	send, recv := make([]byte, most), make([]byte, most)
	t := timer{c: c, o: Options{Budget: modelBudget}}
	for _, n := range modelSizes {
		oneWay := func(ctx context.Context, count int) (float64, error) {
			start := time.Now()
			for range count {
				switch c.Rank() {
				case 0:
					if err := mpi.Send(ctx, c, send[:n], peer, tagModel); err != nil {
						return 0, err
					}
					if _, err := mpi.Recv(ctx, c, recv[:n], peer, tagModel); err != nil {
						return 0, err
					}
				case peer:
					if _, err := mpi.Recv(ctx, c, recv[:n], 0, tagModel); err != nil {
						return 0, err
					}
					if err := mpi.Send(ctx, c, send[:n], 0, tagModel); err != nil {
						return 0, err
					}
				}
			}
			return microseconds(start) / float64(2*count), nil
		}
		exchange := func(ctx context.Context, count int) (float64, error) {
			start := time.Now()
			other := peer
			if c.Rank() == peer {
				other = 0
			}
			if c.Rank() == 0 || c.Rank() == peer {
				for range count {
					if _, err := mpi.Sendrecv(ctx, c, send[:n], other, tagModel, recv[:n], other, tagModel); err != nil {
						return 0, err
					}
				}
			}
			return microseconds(start) / float64(count), nil
		}
		for _, way := range []struct {
			b     batch
			curve *plan.Curve
		}{{oneWay, &l.OneWay}, {exchange, &l.Exchange}} {
			samples, _, err := t.measure(ctx, n, way.b)
			if err != nil {
				return l, err
			}
			*way.curve = append(*way.curve, plan.Point{Bytes: n, Seconds: Quantile(samples, 0.5) / 1e6})
		}
	}
	return l, nil
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
	curves := []*plan.Curve{&m.Host.OneWay, &m.Host.Exchange, &m.Net.OneWay, &m.Net.Exchange, &m.Combine, &m.Copy}
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
