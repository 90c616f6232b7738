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
			model := DefaultModel(d)
			model.NetPartBytes = plan.PartBytes
			err = errors.Join(Configure(d, Config{Model: model, Force: map[plan.Kind]string{plan.Reduce: "binomial"}, StallAfter: -1}), Barrier(ctx, c))
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

// A rank gives up while another has no room for the news of that: it learns of it when it comes and asks.
func TestGivingUpIsToldToWhomItDidNotReach(t *testing.T) {
	// Together more than rank 0 may send before they are received: the last ones use up what the others leave.
	const messages, long, tag = 4160, 4096, 1
	message := func(i int) []byte {
		if i < long {
			return make([]byte, 1<<10)
		}
		return make([]byte, 1)
	}
	gaveUp := make(chan struct{})
	overTCP(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		requests := make([]mpi.Request, messages)
		if c.Rank() == 0 {
			for i := range requests {
				requests[i] = mpi.Isend(c, message(i), 1, tag)
			}
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			err := within(Barrier(short, c), context.DeadlineExceeded)
			close(gaveUp)
			return errors.Join(err, mpi.WaitAll(ctx, requests))
		}
		select {
		case <-gaveUp:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for i := range requests {
			requests[i] = mpi.Irecv(c, message(i), 0, tag)
		}
		if err := mpi.WaitAll(ctx, requests); err != nil {
			return err
		}
		return within(Barrier(ctx, c), mpi.ErrCancelled)
	})
}
