package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// The world closes while goroutines are in collectives, some of which a rank never comes to:
// all end with ErrClosed, by messages and in shared memory, and so do later ones.
func TestCloseEndsCollectives(t *testing.T) {
	const size = 3
	t.Run("shm", func(t *testing.T) { overSharedMemory(t, size, closeAmidCollectives) })
	// One of two gives the other a long message out of a meeting in the arena.
	t.Run("two over shm", func(t *testing.T) { overSharedMemory(t, 2, closeAmidCollectives) })
	t.Run("tcp", func(t *testing.T) { overTCP(t, size, closeAmidCollectives) })
	t.Run("sim", func(t *testing.T) {
		onRanks(t, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			if err := closeAmidCollectives(ctx, c); err != nil {
				t.Errorf("rank %d: %v", c.Rank(), err)
			}
			return errKilled // it has closed its world itself
		})
	})
}

func closeAmidCollectives(ctx context.Context, c *mpi.Comm) error {
	endless := func(n int) func(*mpi.Comm) error {
		return func(d *mpi.Comm) error {
			v := make([]float32, n)
			for {
				if err := Allreduce(ctx, d, v, v, Sum); err != nil {
					return err
				}
			}
		}
	}
	moved := func(d *mpi.Comm) error {
		v := make([]byte, 32<<20)
		for {
			if err := Bcast(ctx, d, v, 0); err != nil {
				return err
			}
		}
	}
	inVain := func(call func(*mpi.Comm) error) func(*mpi.Comm) error {
		return func(d *mpi.Comm) error {
			if d.Rank() == 0 {
				return mpi.ErrClosed // it never comes
			}
			return call(d)
		}
	}
	calls := []func(*mpi.Comm) error{
		inVain(func(d *mpi.Comm) error { return Barrier(ctx, d) }),
		inVain(func(d *mpi.Comm) error { return Iallreduce(d, []int{1}, []int{0}, Sum).Wait(ctx) }),
		endless(1), endless(1000), endless(200_000), moved,
	}
	comms := make([]*mpi.Comm, len(calls))
	onComms := make([]func() error, len(calls))
	for i, call := range calls {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := Configure(d, Config{Force: map[plan.Kind]string{plan.Bcast: DirectPlan}}); err != nil {
			return err
		}
		for range arenaAfter + 2 {
			if err := Barrier(ctx, d); err != nil {
				return err
			}
		}
		comms[i], onComms[i] = d, func() error { return call(d) }
	}
	ended, closing := mpitest.CloseAmid(ctx, c.World(), onComms)
	if closing != nil {
		return closing
	}
	for i, err := range ended {
		if err := within(err, mpi.ErrClosed); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		if err := within(Barrier(ctx, comms[i]), mpi.ErrClosed); err != nil {
			return fmt.Errorf("barrier after call %d: %w", i, err)
		}
	}
	return nil
}
