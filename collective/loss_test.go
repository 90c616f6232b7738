package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// TestLossesOfProcesses kills a process by SIGKILL at any moment of each collective, in shared memory, by
// reading each other's memory and by messages: the survivors name it, and go on
// without it.
func TestLossesOfProcesses(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	const size = 4
	for name := range everyCollective {
		for _, at := range []struct{ transport, way string }{{"shm", MemoryPlan}, {"shm", DirectPlan}, {"shm", "messages"}, {"tcp", "messages"}} {
			for _, n := range []int{1, 100_000} {
				if n == 1 && at.way == DirectPlan {
					continue // the same as in memory
				}
				t.Run(fmt.Sprintf("%s/%s/%s/%d", name, at.transport, at.way, n), func(t *testing.T) {
					micros := random.IntN(20_000)
					mpitest.Processes(t, size, at.transport, "TestLossRank", fmt.Sprintf("%s %s %d %d", at.way, name, n, micros), size-1)
				})
			}
		}
	}
}

// TestLossRank is a rank of TestLossesOfProcesses.
func TestLossRank(t *testing.T) {
	mpitest.BeProcess(t, func(ctx context.Context, c *mpi.Comm, role string) error {
		var way, name string
		var n, micros int
		if _, err := fmt.Sscan(role, &way, &name, &n, &micros); err != nil {
			return err
		}
		force := map[plan.Kind]string{}
		for _, k := range plan.Kinds() {
			force[k] = way
			switch {
			case way == "messages":
				force[k] = planOfMessages(k)
			case !reads(k):
				force[k] = MemoryPlan
			}
		}
		if err := Configure(c, Config{Force: force}); err != nil {
			return err
		}
		victim := c.Size() - 1
		if c.Rank() == victim {
			time.AfterFunc(time.Duration(micros)*time.Microsecond, mpitest.Die)
		}
		var err error
		for err == nil {
			err = everyCollective[name](ctx, c, n)
		}
		if err := within(err, mpi.ErrPeerLost); err != nil {
			return err
		}
		var at *mpi.Error
		if !errors.As(err, &at) || at.Peer != victim {
			return fmt.Errorf("%v does not name rank %d", err, victim)
		}
		if err := Barrier(ctx, c); !errors.Is(err, ErrBroken) || !errors.Is(err, mpi.ErrPeerLost) {
			return fmt.Errorf("afterwards: %v", err)
		}
		s, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		for range arenaAfter + 2 {
			one := []int64{1}
			if err := Allreduce(ctx, s, one, one, Sum); err != nil {
				return err
			}
			if err := equal("survivors", one, []int64{int64(victim)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// planOfMessages is a plan of a kind that needs no shared memory.
func planOfMessages(k plan.Kind) string {
	for _, name := range planNames(k) {
		if name != MemoryPlan && name != DirectPlan {
			return name
		}
	}
	return ""
}
