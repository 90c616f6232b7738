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
)

// A rank gives up a vector that travels in parts, while the other comes to receive it: that learns of it, and never
// takes the second part for the first.
func TestGivingUpPartsIsNoMismatch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const n = plan.PartBytes/4 + 1000 // of int32: two parts, the second of which must not go before it is asked for
	giveUp := func(ctx context.Context, c *mpi.Comm) error {
		random := rand.New(rand.NewPCG(seed, uint64(c.Rank())))
		v := onHeap(c, n)
		for round := range 100 {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			err = errors.Join(Configure(d, Config{Force: map[plan.Kind]string{plan.Reduce: "binomial"}, StallAfter: -1}), Barrier(ctx, c))
			if err != nil {
				return err
			}
			after, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(1000))*time.Microsecond)
			if c.Rank() == 0 {
				err = Reduce(after, d, v.send[:n], nil, Sum, 1)
			} else {
				<-after.Done()
				err = Reduce(ctx, d, v.send[:n], v.recv[:n], Sum, 1)
			}
			cancel()
			if err != nil && !errors.Is(err, mpi.ErrCancelled) && !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("round %d: %w", round, err)
			}
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			d.Free()
		}
		return nil
	}
	t.Run("shm", func(t *testing.T) { overSharedMemory(t, 2, giveUp) })
	t.Run("tcp", func(t *testing.T) { overTCP(t, 2, giveUp) })
}
