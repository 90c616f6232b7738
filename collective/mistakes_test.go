package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Mistakes in the arguments are ErrArgument, and count: ranks that make the same one stay in step.
func TestMistakesCount(t *testing.T) {
	wrong := map[string]func(ctx context.Context, c *mpi.Comm) error{
		"no such operator": func(ctx context.Context, c *mpi.Comm) error {
			return Allreduce(ctx, c, make([]complex64, 4), make([]complex64, 4), Max)
		},
		"operator of another type": func(ctx context.Context, c *mpi.Comm) error {
			return Iallreduce(c, make([]int32, 4), make([]int32, 4), concat).Wait(ctx)
		},
		"reproducible sum to no rank": func(ctx context.Context, c *mpi.Comm) error {
			return Reduce(ctx, c, make([]float64, 4), make([]float64, 4), ReproducibleSum, -1)
		},
		"more to itself": func(ctx context.Context, c *mpi.Comm) error { return ownBlock(ctx, c, 4, 1) },
		"less to itself": func(ctx context.Context, c *mpi.Comm) error { return ownBlock(ctx, c, 1, 4) },
	}
	inStep := func(ctx context.Context, c *mpi.Comm) error {
		seq := uint32(0)
		for name, f := range wrong {
			err := f(ctx, c)
			if err := within(err, ErrArgument); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			var at *Error
			if seq++; !errors.As(err, &at) || at.Seq != seq {
				return fmt.Errorf("%s: %v is not #%d", name, err, seq)
			}
		}
		one := []int32{1}
		if err := Allreduce(ctx, c, one, one, Sum); err != nil {
			return err
		}
		return equal("allreduce", one, []int32{2})
	}
	together(t, 2, inStep)
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, inStep) {
		if err != nil {
			t.Errorf("in shared memory: rank %d: %v", r, err)
		}
	}
}

// Counts of more than can be addressed are a mistake on every rank, also on those that would only pass such blocks on, and where their
// sum or its bytes would wrap around to what the buffers have.
func TestCountsBeyondMemory(t *testing.T) {
	const size = 4
	relayed := Config{Force: map[plan.Kind]string{plan.Gather: "binomial", plan.Scatter: "binomial"}}
	buf := make([]int32, size)
	for name, f := range map[string]func(ctx context.Context, c *mpi.Comm, counts []int) error{
		"gatherv":  func(ctx context.Context, c *mpi.Comm, n []int) error { return Gatherv(ctx, c, buf[:1], buf, n, 0) },
		"scatterv": func(ctx context.Context, c *mpi.Comm, n []int) error { return Scatterv(ctx, c, buf, buf[:1], n, 0) },
		"allgatherv": func(ctx context.Context, c *mpi.Comm, n []int) error {
			return Allgatherv(ctx, c, buf[:n[c.Rank()]%len(buf)], make([]int32, size), n)
		},
		"reduce_scatter": func(ctx context.Context, c *mpi.Comm, n []int) error {
			return ReduceScatter(ctx, c, buf, make([]int32, n[c.Rank()]%len(buf)), n, Sum)
		},
		"alltoallv": func(ctx context.Context, c *mpi.Comm, n []int) error {
			return Alltoallv(ctx, c, buf, n, make([]int32, size), n)
		},
	} {
		for _, counts := range [][]int{
			{1, 1, 1, math.MaxInt},
			{1, 1, 1, 1 << 61},
			{1, 1, 1, 1 << 58},
			{1, 1, 1, blocksBytes/4 - 2},
			{math.MaxInt, math.MaxInt, 2, 4}, // 4 elements, modulo 2⁶⁴
			{1 << 62, 1 << 62, 1 << 62, 1<<62 + 4},
		} {
			together(t, size, func(ctx context.Context, c *mpi.Comm) error {
				if err := Configure(c, relayed); err != nil {
					return err
				}
				err := f(ctx, c, counts)
				if err := within(err, ErrArgument); err != nil {
					return fmt.Errorf("%s, counts %d: %w", name, counts, err)
				}
				if want := "the most that can be addressed"; !strings.Contains(err.Error(), want) {
					return fmt.Errorf("%s, counts %d: %q does not say %q", name, counts, err, want)
				}
				return Barrier(ctx, c) // they are in step
			})
		}
	}
	var q call
	q.setVector(plan.Gather, typeOf[int32](), 0)
	together(t, 2, func(_ context.Context, c *mpi.Comm) error {
		q := q
		if total, mine := q.setCounts(c, []int{blocksBytes/4 - 2, 2}); q.err != nil || total != blocksBytes/4 || mine == 0 {
			return fmt.Errorf("counts of all that can be addressed: %d in all, %d here, %v", total, mine, q.err)
		}
		return nil
	})
}

// A mistake is told in the words of the call.
func TestMistakesAreNamed(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		ints, floats := make([]int32, 4), make([]float64, 4)
		for want, err := range map[string]error{
			"recv has 1 elements, 2 are needed":                      ReduceScatterBlock(ctx, c, ints, ints[:1], Sum),
			"send and recv overlap without beginning together":       ReduceScatterBlock(ctx, c, ints, ints[1:3], Sum),
			"ReproducibleSum is for Allreduce and Reduce that block": Iallreduce(c, floats, floats, ReproducibleSum).Wait(ctx),
			"send has 4 elements, 3 are needed":                      Allreduce(ctx, c, floats, make([]float64, 3), ReproducibleSum),
			"send and recv overlap without being the same slice":     Allreduce(ctx, c, floats[:3], floats[1:], ReproducibleSum),
			"a row and recv overlap without being the same slice":    ReproducibleAllreduce(ctx, c, [][]float64{{1, 2, 3}, floats[1:]}, floats[:3]),
			"a row has 4 elements, 3 are needed":                     ReproducibleAllreduce(ctx, c, [][]float64{floats}, make([]float64, 3)),
		} {
			if err := within(err, ErrArgument); err != nil {
				return err
			}
			if !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%q does not say %q", err, want)
			}
		}
		return nil
	})
}

// A rank's mistake in a call that has parts ends it for the others, which are in one of them.
func TestMistakeOfOneRankEndsPartsOfOthers(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *mpi.Comm, n int) error{
		"reproducible sum": func(ctx context.Context, c *mpi.Comm, n int) error {
			return Allreduce(ctx, c, make([]float64, n), make([]float64, 1000), ReproducibleSum)
		},
		"compared first": func(ctx context.Context, c *mpi.Comm, n int) error {
			return Allreduce(ctx, c, make([]float64, n), make([]float64, 1000), Sum)
		},
	} {
		together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
			if err := Configure(c, Config{CheckAll: true}); err != nil {
				return err
			}
			if c.Rank() == 0 {
				if err := within(call(ctx, c, 999), ErrArgument); err != nil {
					return err
				}
				return within(Barrier(ctx, c), mpi.ErrMismatch)
			}
			if err := within(call(ctx, c, 1000), mpi.ErrMismatch); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
}

// ownBlock is an alltoallv in which a rank sends itself so many elements, and receives so many from itself.
func ownBlock(ctx context.Context, c *mpi.Comm, out, in int) error {
	sends, receives := []int{1, 1}, []int{1, 1}
	sends[c.Rank()], receives[c.Rank()] = out, in
	return Alltoallv(ctx, c, make([]int32, 1+out), sends, make([]int32, 1+in), receives)
}

// By option calls are compared first wherever a message may be too long for that, or not all ranks get one, and nowhere else.
func TestCheckAllCoversAllCalls(t *testing.T) {
	for _, k := range []struct {
		name     string
		p        plan.Problem
		compares bool
	}{
		{"short vector", plan.Problem{Kind: plan.Allreduce, Count: 512}, false},
		{"long vector", plan.Problem{Kind: plan.Allreduce, Count: 513}, true},
		{"no vector", plan.Problem{Kind: plan.Allreduce}, true},
		{"a root that gives", plan.Problem{Kind: plan.Bcast, Count: 1}, true},
		{"others that give", plan.Problem{Kind: plan.Gather, Count: 1}, true},
		{"a first rank that gives", plan.Problem{Kind: plan.Scan, Count: 1}, true},
		{"short blocks", plan.Problem{Kind: plan.Allgather, Count: 128}, false},
		{"blocks that are long together", plan.Problem{Kind: plan.Allgather, Count: 129}, true},
		{"counts", plan.Problem{Kind: plan.Allgather, Counts: []int{1, 0, 0, 0}}, true},
		{"counts of this rank", plan.Problem{Kind: plan.Alltoall, SendCounts: make([]int, 4), RecvCounts: make([]int, 4)}, true},
		{"barrier", plan.Problem{Kind: plan.Barrier}, false},
	} {
		k.p.Size, k.p.ElemBytes = 4, 4
		f := Config{CheckAll: true}
		if f.comparesFirst(&k.p) != k.compares {
			t.Errorf("%s: compared %v", k.name, !k.compares)
		}
		if f.CheckAll = false; f.comparesFirst(&k.p) {
			t.Errorf("%s: compared without CheckAll", k.name)
		}
	}
}
