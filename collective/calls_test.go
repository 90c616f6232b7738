package collective

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Calls of everything, for tests in which something goes wrong: what is in the vectors does not count.

// vectors are what a call works on: n elements for each rank, or for all of them where all have as many.
type vectors struct{ send, recv []int32 }

// onHeap are vectors for calls on n elements.
func onHeap(c *mpi.Comm, n int) vectors {
	return vectors{make([]int32, n*c.Size()), make([]int32, n*c.Size())}
}

// onSlab are the same from mpi.Alloc. They stay until the world is closed.
func onSlab(c *mpi.Comm, n int) (v vectors, err error) {
	if v.send, err = mpi.Alloc[int32](c, n*c.Size()); err == nil {
		v.recv, err = mpi.Alloc[int32](c, n*c.Size())
	}
	return v, err
}

// caller calls one collective on n elements of each rank, or for each.
type caller func(ctx context.Context, c *mpi.Comm, v vectors, n int) error

// everyCollective calls each kind of collective with equal blocks.
var everyCollective = map[string]caller{
	"barrier": func(ctx context.Context, c *mpi.Comm, _ vectors, _ int) error { return Barrier(ctx, c) },
	"bcast":   func(ctx context.Context, c *mpi.Comm, v vectors, n int) error { return Bcast(ctx, c, v.recv[:n], 0) },
	"reduce": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Reduce(ctx, c, v.send[:n], v.recv[:n], Sum, 0)
	},
	"allreduce": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Allreduce(ctx, c, v.send[:n], v.recv[:n], Sum)
	},
	"gather": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Gather(ctx, c, v.send[:n], v.recv[:n*c.Size()], 0)
	},
	"allgather": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Allgather(ctx, c, v.send[:n], v.recv[:n*c.Size()])
	},
	"scatter": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Scatter(ctx, c, v.send[:n*c.Size()], v.recv[:n], 0)
	},
	"reduce_scatter": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return ReduceScatterBlock(ctx, c, v.send[:n*c.Size()], v.recv[:n], Sum)
	},
	"alltoall": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Alltoall(ctx, c, v.send[:n*c.Size()], v.recv[:n*c.Size()])
	},
	"scan": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Scan(ctx, c, v.send[:n], v.recv[:n], Sum)
	},
	"exscan": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Exscan(ctx, c, v.send[:n], v.recv[:n], Sum)
	},
}

// otherForms calls what is no kind of its own: blocks of different lengths, nonblocking calls and
// the reproducible sum.
var otherForms = map[string]caller{
	"gatherv": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		counts, mine, total := someCounts(c, n)
		return Gatherv(ctx, c, v.send[:mine], v.recv[:total], counts, 0)
	},
	"allgatherv": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		counts, mine, total := someCounts(c, n)
		return Allgatherv(ctx, c, v.send[:mine], v.recv[:total], counts)
	},
	"scatterv": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		counts, mine, total := someCounts(c, n)
		return Scatterv(ctx, c, v.send[:total], v.recv[:mine], counts, 0)
	},
	"reduce_scatterv": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		counts, mine, total := someCounts(c, n)
		return ReduceScatter(ctx, c, v.send[:total], v.recv[:mine], counts, Sum)
	},
	"alltoallv": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		counts := slices.Repeat([]int{n}, c.Size())
		return Alltoallv(ctx, c, v.send[:n*c.Size()], counts, v.recv[:n*c.Size()], counts)
	},
	"igatherv": waited(func(c *mpi.Comm, v vectors, n int) Request {
		counts, mine, total := someCounts(c, n)
		return Igatherv(c, v.send[:mine], v.recv[:total], counts, 0)
	}),
	"ireduce_scatterv": waited(func(c *mpi.Comm, v vectors, n int) Request {
		counts, mine, total := someCounts(c, n)
		return IreduceScatter(c, v.send[:total], v.recv[:mine], counts, Sum)
	}),
	"ialltoallv": waited(func(c *mpi.Comm, v vectors, n int) Request {
		counts := slices.Repeat([]int{n}, c.Size())
		return Ialltoallv(c, v.send[:n*c.Size()], counts, v.recv[:n*c.Size()], counts)
	}),
	"ibarrier": waited(func(c *mpi.Comm, _ vectors, _ int) Request { return Ibarrier(c) }),
	"ibcast":   waited(func(c *mpi.Comm, v vectors, n int) Request { return Ibcast(c, v.recv[:n], 0) }),
	"ireduce": waited(func(c *mpi.Comm, v vectors, n int) Request {
		return Ireduce(c, v.send[:n], v.recv[:n], Sum, 0)
	}),
	"iallreduce": waited(func(c *mpi.Comm, v vectors, n int) Request {
		return Iallreduce(c, v.send[:n], v.recv[:n], Sum)
	}),
	"igather": waited(func(c *mpi.Comm, v vectors, n int) Request {
		return Igather(c, v.send[:n], v.recv[:n*c.Size()], 0)
	}),
	"iallgather": waited(func(c *mpi.Comm, v vectors, n int) Request {
		return Iallgather(c, v.send[:n], v.recv[:n*c.Size()])
	}),
	"iscatter": waited(func(c *mpi.Comm, v vectors, n int) Request {
		return Iscatter(c, v.send[:n*c.Size()], v.recv[:n], 0)
	}),
	"ireduce_scatter": waited(func(c *mpi.Comm, v vectors, n int) Request {
		return IreduceScatterBlock(c, v.send[:n*c.Size()], v.recv[:n], Sum)
	}),
	"ialltoall": waited(func(c *mpi.Comm, v vectors, n int) Request {
		return Ialltoall(c, v.send[:n*c.Size()], v.recv[:n*c.Size()])
	}),
	"iscan":   waited(func(c *mpi.Comm, v vectors, n int) Request { return Iscan(c, v.send[:n], v.recv[:n], Sum) }),
	"iexscan": waited(func(c *mpi.Comm, v vectors, n int) Request { return Iexscan(c, v.send[:n], v.recv[:n], Sum) }),
	"reproducible_allreduce": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Allreduce(ctx, c, mpi.View[float32](mpi.Bytes(v.send[:n])), mpi.View[float32](mpi.Bytes(v.recv[:n])), ReproducibleSum)
	},
	"reproducible_reduce": func(ctx context.Context, c *mpi.Comm, v vectors, n int) error {
		return Reduce(ctx, c, mpi.View[float32](mpi.Bytes(v.send[:n])), mpi.View[float32](mpi.Bytes(v.recv[:n])), ReproducibleSum, 0)
	},
}

// everyCall has all of both.
func everyCall() map[string]caller {
	all := maps.Clone(everyCollective)
	maps.Copy(all, otherForms)
	return all
}

// waited starts a collective and waits for it.
func waited(start func(c *mpi.Comm, v vectors, n int) Request) caller {
	return func(ctx context.Context, c *mpi.Comm, v vectors, n int) error { return start(c, v, n).Wait(ctx) }
}

// someCounts are n elements of each rank, but none of rank 1 where others have some, too.
func someCounts(c *mpi.Comm, n int) (counts []int, mine, total int) {
	counts = slices.Repeat([]int{n}, c.Size())
	if c.Size() > 2 {
		counts[1] = 0
	}
	for _, k := range counts {
		total += k
	}
	return counts, counts[c.Rank()], total
}

// forceWay has all collectives done in a way of the arena where it fits, else in shared memory; or by messages.
func forceWay(way string) map[plan.Kind]string {
	force := map[plan.Kind]string{}
	for _, k := range plan.Kinds() {
		switch {
		case way == "messages":
			force[k] = plan.Planners(k)[0].Name
		case reads(k):
			force[k] = way
		default:
			force[k] = MemoryPlan
		}
	}
	return force
}

// lastDiffers has the last rank call odd where the others call other: each gets a mismatch that says all that is wanted,
// if not by this call, then by the next.
func lastDiffers(odd, other func(context.Context, *mpi.Comm) error, want []string) func(context.Context, *mpi.Comm) error {
	return func(ctx context.Context, c *mpi.Comm) error {
		f := other
		if c.Rank() == c.Size()-1 {
			f = odd
		}
		err := f(ctx, c)
		if err == nil {
			err = Barrier(ctx, c)
		}
		return says(err, want...)
	}
}

// says fails unless err is a mismatch that says all that is wanted.
func says(err error, want ...string) error {
	if err := within(err, mpi.ErrMismatch); err != nil {
		return err
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			return fmt.Errorf("%q does not say %q", err, w)
		}
	}
	return nil
}
