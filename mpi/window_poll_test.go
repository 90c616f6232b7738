package mpi_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// TestWindowWatchedByItsOwner: a rank that does nothing but look at its own part, again and again, by calls that wait for
// nobody, sees what others put there by messages: the world takes them in meanwhile.
func TestWindowWatchedByItsOwner(t *testing.T) {
	for _, look := range []struct {
		name string
		at   func(ctx context.Context, w *mpi.Window[int64], part []int64) (int64, error)
	}{
		{"fetch", func(ctx context.Context, w *mpi.Window[int64], _ []int64) (int64, error) {
			return w.FetchAndOp(ctx, 0, 0, 0, mpi.AccNone)
		}},
		{"lock", func(ctx context.Context, w *mpi.Window[int64], part []int64) (int64, error) {
			if err := w.Lock(ctx, 0, mpi.LockExclusive); err != nil {
				return 0, err
			}
			v := part[0]
			return v, w.Unlock(ctx, 0)
		}},
	} {
		var looked chan struct{} // the owner has once more
		f := func(ctx context.Context, c *mpi.Comm) error {
			part := make([]int64, 1)
			w, err := mpi.NewWindow(ctx, c, part)
			if err != nil {
				return err
			}
			if c.Rank() == 1 {
				for range 10 { // the owner does nothing else by then
					select {
					case <-looked:
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				for _, then := range []func() error{
					func() error { return w.Lock(ctx, 0, mpi.LockExclusive) },
					func() error { return w.Accumulate(ctx, 0, 0, []int64{7}, mpi.AccSum) },
					func() error { return w.Unlock(ctx, 0) },
				} {
					if err := then(); err != nil {
						return err
					}
				}
				return w.Free(ctx)
			}
			for {
				v, err := look.at(ctx, w, part)
				switch {
				case err != nil:
					return err
				case ctx.Err() != nil:
					return fmt.Errorf("the part has %d, want 7: %w", v, context.Cause(ctx))
				case v == 7:
					close(looked) // whoever waits for a look need not any more
					return w.Free(ctx)
				case v != 0:
					return fmt.Errorf("the part has %d, want 7", v)
				}
				select {
				case looked <- struct{}{}:
				default:
				}
			}
		}
		t.Run(look.name, func(t *testing.T) {
			looked = make(chan struct{})
			t.Run("shm", func(t *testing.T) { mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 2), f) })
			looked = make(chan struct{})
			t.Run("tcp", func(t *testing.T) { mpitest.Together(t, mpitest.TCPWorlds(t, 2), f) })
		})
	}
}
