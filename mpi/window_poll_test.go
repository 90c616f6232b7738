package mpi_test

import (
	"context"
	"fmt"
	"testing"
	"time"

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
		f := func(ctx context.Context, c *mpi.Comm) error {
			part := make([]int64, 1)
			w, err := mpi.NewWindow(ctx, c, part)
			if err != nil {
				return err
			}
			if c.Rank() == 1 {
				// Not before the owner looks: it would be in already.
				if err := mpi.Send(ctx, c, []byte{1}, 0, 0); err != nil {
					return err
				}
				for _, then := range []func() error{
					func() error { return w.Lock(ctx, 0, mpi.LockExclusive) },
					func() error { return w.Accumulate(ctx, 0, 0, []int64{7}, mpi.AccSum) },
					func() error { return w.Unlock(ctx, 0) },
				} {
					time.Sleep(5 * time.Millisecond)
					if err := then(); err != nil {
						return err
					}
				}
				return w.Free(ctx)
			}
			if _, err := mpi.Recv(ctx, c, make([]byte, 1), 1, 0); err != nil {
				return err
			}
			for end := time.Now().Add(10 * time.Second); ; {
				v, err := look.at(ctx, w, part)
				switch {
				case err != nil:
					return err
				case v == 7:
					return w.Free(ctx)
				case v != 0 || time.Now().After(end):
					return fmt.Errorf("the part has %d, want 7", v)
				}
			}
		}
		t.Run(look.name, func(t *testing.T) {
			t.Run("shm", func(t *testing.T) { mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 2), f) })
			t.Run("tcp", func(t *testing.T) { mpitest.Together(t, mpitest.TCPWorlds(t, 2), f) })
		})
	}
}
