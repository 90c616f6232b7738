package collective

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
)

// A rank is stopped before the others have mapped the vector that it shows. One of them gives up: the other learns of it, and does
// not first wait for the memory.
func TestStoppedBeforeItsVectorIsMapped(t *testing.T) {
	t.Parallel() // mostly waits
	mpitest.Processes(t, 3, "shm", "TestRankStoppedBeforeItsVectorIsMapped", "", 2)
}

func TestRankStoppedBeforeItsVectorIsMapped(t *testing.T) {
	mpitest.BeProcess(t, func(ctx context.Context, c *mpi.Comm, _ string) error {
		const n, tag, stopped = 50_000, 1, 2
		old, err := onSlab(c, n)
		if err != nil {
			return err
		}
		if err := errors.Join(Configure(c, Config{Model: mappedModel()}), agreeToMap(ctx, c, old)); err != nil {
			return err
		}
		v, err := onSlab(c, n)
		if err != nil {
			return err
		}
		pid := []int{os.Getpid()}
		if c.Rank() == stopped {
			if err := mpi.Send(ctx, c, pid, 0, tag); err != nil {
				return err
			}
			return Allreduce(ctx, c, v.send, v.recv, Sum)
		}
		if c.Rank() == 1 {
			if _, err := mpi.Recv(ctx, c, pid, 0, tag); err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			return within(Allreduce(short, c, v.send, v.recv, Sum), context.DeadlineExceeded)
		}
		if _, err := mpi.Recv(ctx, c, pid, stopped, tag); err != nil {
			return err
		}
		defer syscall.Kill(pid[0], syscall.SIGKILL)
		a := stateOf(c).arena.Load()
		lookUntil(ctx, func() bool { return atomic.LoadUint64(&a.parts[stopped][slot(a.turn+1)]) > a.turn })
		if err := syscall.Kill(pid[0], syscall.SIGSTOP); err != nil {
			return err
		}
		if err := mpi.Send(ctx, c, pid, 1, tag); err != nil {
			return err
		}
		begun := time.Now()
		if err := within(Allreduce(ctx, c, v.send, v.recv, Sum), mpi.ErrCancelled); err != nil {
			return err
		}
		if took := time.Since(begun); took > shm.UsualTimeout/2 {
			return fmt.Errorf("it has learned that rank 1 gave up after %v", took)
		}
		return nil
	})
}
