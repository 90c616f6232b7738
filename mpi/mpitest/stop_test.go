package mpitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// TestStoppedProcesses stops ranks by SIGSTOP in mid-transfer. They are declared lost after the peer timeout; and
// what they were at, and go on with when they are woken, touches no buffer that has been given back.
func TestStoppedProcesses(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, transport := range []string{"shm", "tcp"} {
		for _, ranks := range []int{2, 3} { // alone with its peer, a rank helps to copy
			t.Run(fmt.Sprintf("%s/%d", transport, ranks), func(t *testing.T) {
				t.Parallel()
				var dying []int
				for r := 1; r < ranks; r++ {
					dying = append(dying, r)
				}
				Processes(t, ranks, transport, "TestStoppedRank", fmt.Sprint(seed), dying...)
			})
		}
	}
}

// TestStoppedRank is a rank of TestStoppedProcesses. Rank 0 stops the others: the odd ones while they send to it, the
// even ones while they receive from it.
func TestStoppedRank(t *testing.T) {
	const peerTimeout = 5 * time.Second
	beProcess(t, peerTimeout, func(ctx context.Context, c *mpi.Comm, role string) error {
		if c.Rank() > 0 {
			return stopped(ctx, c)
		}
		seed, err := strconv.ParseUint(role, 10, 64)
		if err != nil {
			return err
		}
		random := rand.New(rand.NewPCG(seed, uint64(c.Size())))
		pids := make([]int, c.Size())
		for r := 1; r < c.Size(); r++ {
			if _, err := mpi.Recv(ctx, c, pids[r:r+1], r, tagPid); err != nil {
				return err
			}
			defer syscall.Kill(pids[r], syscall.SIGCONT) // whatever happens
			moment := time.AfterFunc(time.Duration(random.IntN(200))*time.Millisecond, func() { syscall.Kill(pids[r], syscall.SIGSTOP) })
			defer moment.Stop()
		}
		errs := make([]error, c.Size())
		bufs := make([][]byte, c.Size())
		_ = together(c.Size()-1, func(i int) error {
			bufs[i+1] = make([]byte, stoppedBytes)
			errs[i+1] = transfers(ctx, c, bufs[i+1], i+1, i%2)
			return nil
		})
		mark := bytes.Repeat([]byte{0xEE}, stoppedBytes)
		for r := 1; r < c.Size(); r++ {
			if err := names("transfers with the stopped rank", errs[r], c, r); err != nil {
				return err
			}
			if !errors.Is(errs[r], mpi.ErrInFlight) {
				copy(bufs[r], mark)
			}
		}
		for r := 1; r < c.Size(); r++ {
			if err := syscall.Kill(pids[r], syscall.SIGCONT); err != nil {
				return fmt.Errorf("wake rank %d: %w", r, err)
			}
		}
		for r := 1; r < c.Size(); r++ {
			var at *mpi.Error
			if errors.As(errs[r], &at); errors.Is(errs[r], mpi.ErrInFlight) {
				select {
				case <-at.Done:
				case <-ctx.Done():
					return fmt.Errorf("rank %d runs on, and the buffer is not free: %v", r, errs[r])
				}
				copy(bufs[r], mark)
			}
		}
		for r := 1; r < c.Size(); r++ {
			if err := lab.AwaitEnd(pids[r], patience()); err != nil {
				return fmt.Errorf("rank %d: %w", r, err)
			}
			if !bytes.Equal(bufs[r], mark) {
				return fmt.Errorf("rank %d wrote into a buffer that had been given back with %v", r, errs[r])
			}
		}
		return nil
	})
}

const (
	tagPid       = 1
	tagStopped   = 2
	stoppedBytes = 32 << 20
)

// transfers goes on until it fails: in the direction given it sends, else it receives. It has no deadline but
// that of the whole.
func transfers(ctx context.Context, c *mpi.Comm, buf []byte, peer, sends int) error {
	for {
		var err error
		if sends == 0 {
			_, err = mpi.Recv(ctx, c, buf, peer, tagStopped)
		} else {
			err = mpi.Send(ctx, c, buf, peer, tagStopped)
		}
		if err != nil {
			return err
		}
	}
}

// stopped is a rank that is stopped, and woken when the others have given it up.
func stopped(ctx context.Context, c *mpi.Comm) error {
	if err := mpi.Send(ctx, c, []int{os.Getpid()}, 0, tagPid); err != nil {
		return err
	}
	if err := transfers(ctx, c, filled(uint64(c.Rank()), stoppedBytes), 0, c.Rank()%2); err == nil || ctx.Err() != nil {
		return fmt.Errorf("rank %d was not given up: %w", c.Rank(), err)
	}
	Die()
	return nil
}
