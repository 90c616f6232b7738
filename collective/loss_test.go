package collective

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// Ways of TestLossesOfProcesses besides those that are forced.
const (
	wayMapped = "mapped" // the ranks map each other's vectors
	wayChosen = "chosen" // by the model
)

// TestLossesOfProcesses kills a process by SIGKILL at any moment of each collective, in shared memory, by
// reading each other's memory, by mapping it and by messages: the survivors name it, and go on
// without it.
func TestLossesOfProcesses(t *testing.T) {
	t.Parallel() // mostly waits
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	const size = 4
	cases := 0
	kill := func(t *testing.T, transport, way, name string, n int) {
		micros := random.IntN(20_000)
		if cases++; need.RaceDetector && cases%32 != 0 {
			return // four processes under it take a second to start
		}
		t.Run(fmt.Sprintf("%s/%s/%s/%d", name, transport, way, n), func(t *testing.T) {
			mpitest.Processes(t, size, transport, "TestLossRank", fmt.Sprintf("%s %s %d %d", way, name, n, micros), size-1)
		})
	}
	const short, long = 1, 100_000
	for _, name := range slices.Sorted(maps.Keys(everyCollective)) {
		for _, n := range []int{short, long} {
			kill(t, "shm", MemoryPlan, name, n)
			kill(t, "shm", "messages", name, n)
			kill(t, "tcp", "messages", name, n)
		}
		kill(t, "shm", DirectPlan, name, long)
		kill(t, "shm", wayMapped, name, long)
	}
	for _, name := range slices.Sorted(maps.Keys(otherForms)) {
		for _, n := range []int{short, long} {
			kill(t, "shm", wayChosen, name, n)
			kill(t, "tcp", wayChosen, name, n)
		}
		kill(t, "shm", wayMapped, name, long)
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
		v, err := onHeap(c, n), error(nil)
		config := Config{Force: forceWay(way)}
		switch way {
		case wayChosen:
			config = Config{}
		case wayMapped:
			config = Config{Model: mappedModel()}
			v, err = onSlab(c, n)
		}
		if err := errors.Join(err, Configure(c, config)); err != nil {
			return err
		}
		if way == wayMapped {
			if err := agreeToMap(ctx, c, v); err != nil {
				return err
			}
		}
		// The victim dies after all have come here.
		err = Barrier(ctx, c)
		victim := c.Size() - 1
		if c.Rank() == victim {
			time.AfterFunc(time.Duration(micros)*time.Microsecond, mpitest.Die)
		}
		for op := everyCall()[name]; err == nil; {
			err = op(ctx, c, v, n)
		}
		if err := within(err, mpi.ErrPeerLost); err != nil {
			return err
		}
		if kind, err := plan.ParseKind(name); way == wayMapped && err == nil && reads(kind) {
			if err := mapsFor(c, kind); err != nil {
				return err
			}
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
