package mpitest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"golang.org/x/sys/unix"
)

// idleTime is for how long the ranks of TestWaitingRankSleeps have nothing to do.
const idleTime = 3 * time.Second

// A rank that waits in Recv sleeps, and so does the keeper of one that makes no call: both use less than 1 % of
// their time. It is the processor's time that counts, not how long anything takes.
func TestWaitingRankSleeps(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			Processes(t, 2, transport, "TestIdleRank", "")
		})
	}
}

// TestIdleRank is a rank of TestWaitingRankSleeps: rank 0 makes no call, while goroutines of rank 1 wait
// for what it sends at last.
func TestIdleRank(t *testing.T) {
	BeProcess(t, func(ctx context.Context, c *mpi.Comm, _ string) error {
		const goroutines = 3
		begin, before := time.Now(), processorTime()
		if c.Rank() == 0 {
			measured, cancel := context.WithTimeout(ctx, idleTime)
			defer cancel()
			<-measured.Done()
		} else if err := together(goroutines, func(g int) error {
			_, err := mpi.Recv(ctx, c, make([]byte, 1), 0, g)
			return err
		}); err != nil {
			return err
		}
		// The constant is for falling asleep and for waking up.
		used, elapsed := processorTime()-before, time.Since(begin)
		if limit := elapsed/100 + 20*time.Millisecond; used > limit {
			return fmt.Errorf("rank %d used %v of the processor in %v with nothing to do, want less than %v", c.Rank(), used, elapsed, limit)
		}
		fmt.Printf("rank %d used %v of the processor in %v\n", c.Rank(), used, elapsed)
		if c.Rank() != 0 {
			return nil
		}
		for g := range goroutines {
			if err := mpi.Send(ctx, c, []byte{1}, 1, g); err != nil {
				return err
			}
		}
		return nil
	})
}

// processorTime is what all threads of this process have used of the processors.
func processorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err) // of arguments that do not exist
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
