package mpitest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"golang.org/x/sys/unix"
)

// The ranks of TestWaitingRankSleeps have nothing to do for fallTime and idleTime in a stretch. The first is for falling asleep.
const (
	fallTime = time.Second / 2
	idleTime = 5 * time.Second / 2
)

// A rank that waits in Recv sleeps, and so does the keeper of one that makes no call: both use less than 1 % of
// their time, once they have fallen asleep. It is the processor's time that counts, not how long anything takes.
func TestWaitingRankSleeps(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			Processes(t, 2, transport, "TestIdleRank", "")
		})
	}
}

// TestIdleRank is a rank of TestWaitingRankSleeps: rank 0 makes no call, while goroutines of rank 1 wait
// for what it sends at last. Of several stretches the least busy one of each rank counts: in the others the processor may have been
// taken away and charged to the rank.
func TestIdleRank(t *testing.T) {
	BeProcess(t, func(ctx context.Context, c *mpi.Comm, _ string) error {
		const stretches = 5
		slept := byte(0)
		for stretch := 1; ; stretch++ {
			busy, err := idle(ctx, c)
			if err != nil {
				return err
			}
			if busy == nil {
				slept = 1
			}
			other := make([]byte, 1)
			if _, err := mpi.Sendrecv(ctx, c, []byte{slept}, 1-c.Rank(), tagSlept, other, 1-c.Rank(), tagSlept); err != nil {
				return err
			}
			switch {
			case slept == 1 && (other[0] == 1 || stretch == stretches): // the other tells of itself
				return nil
			case stretch == stretches:
				return busy
			}
		}
	})
}

// The tags of TestIdleRank: goroutines of rank 1 receive with those below idlers.
const (
	idlers      = 3
	tagSlept    = idlers
	tagMeasured = idlers + 1
)

// idle is one stretch in which the ranks have nothing to do. busy says how much more than it may have this rank has used.
func idle(ctx context.Context, c *mpi.Comm) (busy, err error) {
	received := make(chan error, 1)
	if c.Rank() == 1 {
		go func() {
			received <- together(idlers, func(g int) error {
				_, err := mpi.Recv(ctx, c, make([]byte, 1), 0, g)
				return err
			})
		}()
	}
	<-time.After(fallTime)
	begin, before := time.Now(), processorTime()
	<-time.After(idleTime)
	used, elapsed := processorTime()-before, time.Since(begin)
	fmt.Printf("rank %d used %v of the processor in %v\n", c.Rank(), used, elapsed)
	if limit := elapsed / 100; used >= limit {
		busy = fmt.Errorf("rank %d used %v of the processor in %v with nothing to do, want less than %v", c.Rank(), used, elapsed, limit)
	}
	// Nothing wakes rank 1 before it has measured.
	if c.Rank() == 1 {
		if err := mpi.Send(ctx, c, []byte{1}, 0, tagMeasured); err != nil {
			return nil, err
		}
		return busy, <-received
	}
	if _, err := mpi.Recv(ctx, c, make([]byte, 1), 1, tagMeasured); err != nil {
		return nil, err
	}
	for g := range idlers {
		if err := mpi.Send(ctx, c, []byte{1}, 1, g); err != nil {
			return nil, err
		}
	}
	return busy, nil
}

// processorTime is what all threads of this process have used of the processors.
func processorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err) // of arguments that do not exist
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
