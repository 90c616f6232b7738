package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// betweenParts has two goroutines of rank 0 call something of several parts and a barrier, in this order, and
// the barrier begins before the second part. The other ranks call one after the other.
func betweenParts(ctx context.Context, c *mpi.Comm, call func() error) error {
	const tag = 77
	if c.Rank() != 0 {
		if _, err := mpi.Recv(ctx, c, []int32{0}, 0, tag); err != nil {
			return err
		}
		if err := call(); err != nil {
			return err
		}
		return Barrier(ctx, c)
	}
	s := stateOf(c)
	numbered := func() uint32 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.seq
	}
	begin := func(f func() error) chan error {
		before, end := numbered(), make(chan error, 1)
		go func() { end <- f() }()
		lookUntil(ctx, func() bool { return numbered() > before })
		return end
	}
	first := begin(call)
	second := begin(func() error { return Barrier(ctx, c) })
	for r := 1; r < c.Size(); r++ {
		if err := mpi.Send(ctx, c, []int32{0}, r, tag); err != nil {
			return err
		}
	}
	return errors.Join(<-first, <-second)
}

// sumsBetweenBarriers has a barrier begin within each kind of reproducible sum.
func sumsBetweenBarriers(ctx context.Context, c *mpi.Comm) error {
	for _, n := range []int{1, 1000, 100_000} {
		err := sumsBesideBarrier[float32](ctx, c, n)
		if err == nil {
			err = sumsBesideBarrier[float64](ctx, c, n)
		}
		if err != nil {
			return fmt.Errorf("%d elements: %w", n, err)
		}
	}
	return nil
}

func sumsBesideBarrier[F float32 | float64](ctx context.Context, c *mpi.Comm, n int) error {
	send, recv, want := make([]F, n), make([]F, n), make([]F, n)
	for i := range send {
		send[i] = F(c.Rank() + i)
		want[i] = F(c.Size()*i + c.Size()*(c.Size()-1)/2)
	}
	root := c.Size() - 1
	err := betweenParts(ctx, c, func() error { return Allreduce(ctx, c, send, recv, ReproducibleSum) })
	if err == nil {
		err = equal("allreduce", recv, want)
	}
	if err != nil {
		return err
	}
	clear(recv)
	err = betweenParts(ctx, c, func() error { return Reduce(ctx, c, send, recv, ReproducibleSum, root) })
	if err != nil || c.Rank() != root {
		return err
	}
	return equal("reduce", recv, want)
}

// checkedBesideBarrier has a barrier begin while the ranks compare an allreduce.
func checkedBesideBarrier(ctx context.Context, c *mpi.Comm) error {
	f := ConfigOf(c)
	f.CheckAll = true
	if err := reconfigure(ctx, c, f); err != nil {
		return err
	}
	n := 1000
	send, recv, want := make([]int32, n), make([]int32, n), make([]int32, n)
	for i := range send {
		send[i], want[i] = int32(i), int32(c.Size()*i)
	}
	err := betweenParts(ctx, c, func() error { return Allreduce(ctx, c, send, recv, Sum) })
	if err != nil {
		return err
	}
	return equal("checked allreduce", recv, want)
}

// A call of another goroutine comes before both halves of a reproducible sum or after both.
func TestNothingComesBetweenHalves(t *testing.T) {
	const size = 3
	report := func(t *testing.T, errs []error) {
		for r, err := range errs {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	}
	t.Run("messages", func(t *testing.T) { report(t, onRanks(t, size, mpi.LocalOptions{}, sumsBetweenBarriers)) })
	for _, way := range arenaPlans {
		t.Run(way, func(t *testing.T) { report(t, inShared(t, way, size, mpi.LocalOptions{}, sumsBetweenBarriers)) })
	}
	t.Run("checked", func(t *testing.T) {
		report(t, onRanks(t, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			if err := Configure(c, Config{CheckAll: true}); err != nil {
				return err
			}
			return sumsBetweenBarriers(ctx, c)
		}))
	})
}

// Goroutines are in reproducible sums at once, also while the communicator gets its arena.
func TestReproducibleSumsAtOnce(t *testing.T) {
	const size, goroutines, sums, n = 2, 4, 20, 100
	communicators := 10
	if testing.Short() {
		communicators = 3
	}
	f := func(ctx context.Context, c *mpi.Comm) error {
		for i := range communicators {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			send, want := make([]float64, n), make([]float64, n)
			for i := range send {
				send[i], want[i] = float64(i), float64(size*i)
			}
			errs := make([]error, goroutines)
			var all sync.WaitGroup
			for g := range errs {
				all.Go(func() {
					for range sums {
						got := make([]float64, n)
						err := Allreduce(ctx, d, send, got, ReproducibleSum)
						if err == nil {
							err = equal("sum", got, want)
						}
						if err != nil {
							errs[g] = fmt.Errorf("communicator %d: %w", i, err)
							return
						}
					}
				})
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
			d.Free()
		}
		return nil
	}
	t.Run("sim", func(t *testing.T) { together(t, size, f) })
	t.Run("shm", func(t *testing.T) { spinning(size, func() { overSharedMemory(t, size, f) }) })
	t.Run("tcp", func(t *testing.T) { overTCP(t, size, f) })
}

// A sum that is given up in its first half lets those pass that wait behind its second.
func TestGivingUpTheFirstHalf(t *testing.T) {
	aloneInArena(t, func(ctx context.Context, c *mpi.Comm) error {
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- Allreduce(short, c, []float64{1}, []float64{0}, ReproducibleSum) }()
		lookUntil(ctx, func() bool { return ticketsOf(c) == 2 })
		go func() { second <- Barrier(ctx, c) }()
		lookUntil(ctx, func() bool { return ticketsOf(c) == 3 })
		cancel()
		if err := within(<-first, context.Canceled); err != nil {
			return err
		}
		return within(<-second, mpi.ErrCancelled)
	})
}

// Ranks that are in different parts of the same call have not called different things.
func TestPartsOfACallDoNotDiffer(t *testing.T) {
	of := func(k plan.Kind, p phase, planner int) signature {
		q := &call{key: key{kind: k, op: ReproducibleSum, count: 4}}
		part := q.part(p)
		return part.sign(planner)
	}
	scale := of(plan.Allreduce, scaling, 1)
	for _, k := range []struct {
		name    string
		other   signature
		differs bool
	}{
		{"the same", of(plan.Allreduce, scaling, 1), false},
		{"the same by another plan", of(plan.Allreduce, scaling, 2), true},
		{"the next half, by another plan", of(plan.Allreduce, adding, 2), false},
		{"a preparation", of(plan.Allreduce, comparing, 0), false},
		{"the half of something else", of(plan.Reduce, adding, 2), true},
	} {
		if scale.differs(k.other) != k.differs || k.other.differs(scale) != k.differs {
			t.Errorf("%s: differs is not %v", k.name, k.differs)
		}
	}
}
