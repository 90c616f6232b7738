package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// The collectives are timed as OSU does: every call on its own, an untimed
// barrier between, the mean over the ranks. Sizes are of the vector (allreduce,
// reduce, bcast, scan), of one rank's share (allgather, alltoall, gather, scatter), or of the whole
// vector (reduce_scatter). Vectors are float32, reductions are sums of small integers, so
// that every result is exact.

// collectiveOp is a collective that can be measured: how large its buffers are, what it does, and what a rank must hold at
// index i afterwards (false: nothing).
type collectiveOp struct {
	name, short, title string
	send, recv         share
	call               func(v *vectors, ctx context.Context) error
	want               func(v *vectors, i int) (float32, bool)
}

// SizesOf are the sizes that mean something to a collective: to a barrier 0 alone.
func SizesOf(kind plan.Kind, sizes []int) []int {
	if kind == plan.Barrier {
		return []int{0}
	}
	return sizes
}

// TotalBytes converts a size as bench counts it (one rank's share for allgather, alltoall, gather and scatter) to
// Problem.TotalBytes, by which plans are chosen.
func TotalBytes(kind plan.Kind, size, ranks int) int {
	op, ok := collectiveNamed(kind.String())
	if !ok { // which is not measured, and has no blocks
		return size
	}
	return op.total(size, ranks)
}

// total converts a size to the bytes of all blocks together, on so many ranks.
func (op collectiveOp) total(size, ranks int) int {
	if op.send == perRank || op.recv == perRank {
		return size * ranks
	}
	return size
}

// share says how often a buffer holds the size.
type share int

const (
	none share = iota
	once
	perRank
)

// vectors is one size of one collective.
type vectors struct {
	c          *mpi.Comm
	in         memory
	n          int // elements of the size
	send, recv []float32
	counts     []int // reduce_scatter
}

// element is what a rank has in a vector. The sum over 65,536 ranks is below 2²⁴, so that it is exact in any order.
func element(rank, i int) float32 { return float32(i%elementPeriod + rank%rankPeriod + 1) }

// Primes, so that a result shifted by a block or a node differs.
const (
	elementPeriod = 101
	rankPeriod    = 257
)

// sumOver is the sum of element i over the first ranks.
func sumOver(ranks, i int) float32 {
	whole, rest := ranks/rankPeriod, ranks%rankPeriod
	return float32(ranks*(i%elementPeriod+1) + whole*rankPeriod*(rankPeriod-1)/2 + rest*(rest-1)/2)
}

func collectiveOps() []collectiveOp {
	atRoot := func(v *vectors) bool { return v.c.Rank() == 0 }
	return []collectiveOp{
		{"allreduce", "sum over all ranks, for all", "MPI_Allreduce Latency Test", once, once,
			func(v *vectors, ctx context.Context) error {
				return collective.Allreduce(ctx, v.c, v.send, v.recv, collective.Sum)
			},
			func(v *vectors, i int) (float32, bool) { return sumOver(v.c.Size(), i), true }},
		{"bcast", "rank 0's vector for all", "MPI_Bcast Latency Test", once, none,
			func(v *vectors, ctx context.Context) error { return collective.Bcast(ctx, v.c, v.send, 0) },
			func(v *vectors, i int) (float32, bool) { return element(0, i), true }},
		{"reduce", "sum over all ranks, for rank 0", "MPI_Reduce Latency Test", once, once,
			func(v *vectors, ctx context.Context) error {
				return collective.Reduce(ctx, v.c, v.send, v.recv, collective.Sum, 0)
			},
			func(v *vectors, i int) (float32, bool) { return sumOver(v.c.Size(), i), atRoot(v) }},
		{"allgather", "every rank's share, for all", "MPI_Allgather Latency Test", once, perRank,
			func(v *vectors, ctx context.Context) error { return collective.Allgather(ctx, v.c, v.send, v.recv) },
			func(v *vectors, i int) (float32, bool) { return element(i/v.n, i%v.n), true }},
		{"reduce_scatter", "sum over all ranks, a share for each", "MPI_Reduce_scatter Latency Test", once, once,
			func(v *vectors, ctx context.Context) error {
				return collective.ReduceScatter(ctx, v.c, v.send, v.recv[:v.counts[v.c.Rank()]], v.counts, collective.Sum)
			},
			func(v *vectors, i int) (float32, bool) {
				skip := 0
				for _, n := range v.counts[:v.c.Rank()] {
					skip += n
				}
				return sumOver(v.c.Size(), skip+i), i < v.counts[v.c.Rank()]
			}},
		{"alltoall", "a share from every rank to every other", "MPI_Alltoall Latency Test", perRank, perRank,
			func(v *vectors, ctx context.Context) error { return collective.Alltoall(ctx, v.c, v.send, v.recv) },
			func(v *vectors, i int) (float32, bool) { return element(i/v.n, v.c.Rank()*v.n+i%v.n), true }},
		{"gather", "every rank's share, for rank 0", "MPI_Gather Latency Test", once, perRank,
			func(v *vectors, ctx context.Context) error { return collective.Gather(ctx, v.c, v.send, v.recv, 0) },
			func(v *vectors, i int) (float32, bool) { return element(i/v.n, i%v.n), atRoot(v) }},
		{"scatter", "rank 0's shares, one for each", "MPI_Scatter Latency Test", perRank, once,
			func(v *vectors, ctx context.Context) error { return collective.Scatter(ctx, v.c, v.send, v.recv, 0) },
			func(v *vectors, i int) (float32, bool) { return element(0, v.c.Rank()*v.n+i), true }},
		{"barrier", "nobody leaves before all have come", "MPI_Barrier Latency Test", none, none,
			func(v *vectors, ctx context.Context) error { return collective.Barrier(ctx, v.c) },
			func(*vectors, int) (float32, bool) { return 0, false }},
		{"scan", "sum over the ranks up to each", "MPI_Scan Latency Test", once, once,
			func(v *vectors, ctx context.Context) error {
				return collective.Scan(ctx, v.c, v.send, v.recv, collective.Sum)
			},
			func(v *vectors, i int) (float32, bool) { return sumOver(v.c.Rank()+1, i), true }},
	}
}

const elementBytes = 4

// wholeElements refuses sizes with a part of an element.
func wholeElements(sizes ...int) error {
	for _, size := range sizes {
		if size%elementBytes != 0 {
			return usage("%d bytes: sizes of collectives are multiples of %d, of float32", size, elementBytes)
		}
	}
	return nil
}

// checkSizes refuses sizes for which the collective cannot be measured.
func (op collectiveOp) checkSizes(sizes []int) error {
	if op.send == none && op.recv == none {
		for _, size := range sizes {
			if size != 0 {
				return usage("%s of %d bytes: it moves none", op.name, size)
			}
		}
	}
	return wholeElements(sizes...)
}

// measureCollective times one collective on vectors of such memory, at all sizes.
func measureCollective(ctx context.Context, c *mpi.Comm, op collectiveOp, in memory, o Options, row func(Row)) error {
	if err := op.checkSizes(o.Sizes); err != nil {
		return err
	}
	t := timer{c: c, kind: Collective, o: o}
	if err := meet(ctx, c); err != nil { // so that the call that is verified goes the same way as those that are timed
		return err
	}
	for _, size := range o.Sizes {
		v, err := op.vectors(c, in, size/elementBytes)
		if err != nil {
			return err
		}
		verify := func(ctx context.Context) error { return v.verify(ctx, op) }
		if o.Check == checked {
			verify = func(ctx context.Context) error { return v.introduce(ctx, op) }
		}
		if err := verify(ctx); err != nil { // which tells the others whether they can read these vectors in place
			return err
		}
		var l *laps
		if o.Tail {
			l = new(laps)
		}
		samples, calls, err := t.checked(ctx, size, verify, func(ctx context.Context, count int, l *laps) (float64, error) {
			return v.batch(ctx, op, count, l)
		}, l)
		if err != nil {
			return err
		}
		if err := v.free(); err != nil {
			return err
		}
		all, err := toRoot(ctx, c, samples)
		if err != nil {
			return err
		}
		if err := l.average(ctx, c); err != nil {
			return err
		}
		if c.Rank() == 0 {
			r := rowOf(op.name, size, c.Size(), all, calls)
			r.Tail = l.tail(func(us float64) float64 { return us })
			row(r)
		}
	}
	return nil
}

// vectors gets the memory of a collective.
func (op collectiveOp) vectors(c *mpi.Comm, in memory, n int) (*vectors, error) {
	room := func(s share) ([]float32, error) {
		switch s {
		case once:
			return in.get(c, n)
		case perRank:
			return in.get(c, n*c.Size())
		}
		return nil, nil
	}
	v := &vectors{c: c, in: in, n: n, counts: make([]int, c.Size())}
	var err error
	if v.send, err = room(op.send); err != nil {
		return nil, err
	}
	if v.recv, err = room(op.recv); err != nil {
		return nil, err
	}
	for r := range v.counts {
		v.counts[r] = n / c.Size()
		if r < n%c.Size() {
			v.counts[r]++
		}
	}
	return v, nil
}

// introduce does the collective once, and has the ranks meet until each knows whether the others can read these vectors in
// place.
func (v *vectors) introduce(ctx context.Context, op collectiveOp) error {
	if err := op.call(v, ctx); err != nil {
		return err
	}
	return meet(ctx, v.c)
}

// free gives the memory back. No rank reads it any more: all have come to the barrier after the last call.
func (v *vectors) free() error {
	if err := v.in.free(v.c, v.send); err != nil {
		return err
	}
	return v.in.free(v.c, v.recv)
}

// batch times count calls, each on its own.
func (v *vectors) batch(ctx context.Context, op collectiveOp, count int, l *laps) (float64, error) {
	var mine time.Duration
	watch := startStopwatch()
	for range count {
		start := watch.now()
		if err := op.call(v, ctx); err != nil {
			return 0, err
		}
		took := watch.now() - start
		mine += took
		l.add(took)
		if op.name == "barrier" {
			continue
		}
		if err := collective.Barrier(ctx, v.c); err != nil {
			return 0, err
		}
	}
	return float64(mine) / 1e3 / float64(count), nil
}

// verify runs the collective once and looks at every element.
func (v *vectors) verify(ctx context.Context, op collectiveOp) error {
	for i := range v.send {
		v.send[i] = element(v.c.Rank(), i)
	}
	clear(v.recv)
	if op.recv == none && v.c.Rank() != 0 {
		clear(v.send)
	}
	if err := op.call(v, ctx); err != nil {
		return err
	}
	got := v.recv
	if op.recv == none {
		got = v.send
	}
	for i, x := range got {
		if want, ok := op.want(v, i); ok && x != want {
			return fmt.Errorf("bench: rank %d: %w: %s of %d elements: element %d is %g, not %g", v.c.Rank(), ErrWrong, op.name, v.n, i, x, want)
		}
	}
	return collective.Barrier(ctx, v.c)
}
