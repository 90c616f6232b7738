package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// A world closes while goroutines put to, get from and lock a window. All end with
// ErrClosed, none touches memory that is gone, and what the window mapped goes when the
// program forgets it.
func TestCloseEndsWindowOperations(t *testing.T) {
	onEach(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		const n = 1 << 16
		part, err := mpi.Alloc[float64](c, n)
		if err != nil {
			return err
		}
		w, err := mpi.NewWindow(ctx, c, part)
		if err != nil {
			return err
		}
		peer := 1 - c.Rank()
		if c.Rank() == 0 {
			if err := w.Lock(ctx, 1, mpi.LockExclusive); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		buf := func() []float64 { return make([]float64, n) }
		until := func(f func() error) func() error {
			return func() error {
				for {
					if err := f(); err != nil {
						return err
					}
				}
			}
		}
		out, in, add := buf(), buf(), buf()[:100]
		calls := []func() error{
			until(func() error { return w.Put(ctx, peer, 0, out) }),
			until(func() error { return w.Get(ctx, peer, 0, in) }),
			until(func() error { return w.Accumulate(ctx, peer, n-100, add, mpi.AccSum) }),
			until(func() error { _, err := w.FetchAndOp(ctx, peer, 7, 1, mpi.AccSum); return err }),
			until(func() error { return w.Flush(ctx, peer) }),
		}
		if c.Rank() == 1 { // rank 0 never gives it back, nor does it come to the fence
			calls = append(calls,
				func() error { return w.Lock(ctx, 1, mpi.LockExclusive) },
				func() error { return w.Fence(ctx) })
		}
		ended, closing := mpitest.CloseAmid(ctx, c.World(), calls)
		for i, err := range ended {
			if !errors.Is(err, mpi.ErrClosed) {
				return fmt.Errorf("call %d ended with %v", i, err)
			}
		}
		w.Release()
		return errors.Join(closing, mpi.Free(c, part))
	})
}

// Communicators come and go while the world closes.
func TestCloseBesideNewCommunicators(t *testing.T) {
	for range 20 {
		worlds, err := mpi.Local(1, mpi.LocalOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w := worlds[0]
		ended, closing := mpitest.CloseAmid(t.Context(), w, slices.Repeat([]func() error{func() error {
			for {
				c, err := w.Comm().Dup(t.Context())
				if err != nil {
					return err
				}
				c.Free()
			}
		}}, 2))
		for _, err := range ended {
			if !errors.Is(err, mpi.ErrClosed) {
				t.Errorf("a duplicate ended with %v", err)
			}
		}
		if closing != nil {
			t.Error(closing)
		}
	}
}
