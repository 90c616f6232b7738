package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// inShared runs f on n ranks of this process that share an arena.
func inShared(t testing.TB, n int, f func(ctx context.Context, c *mpi.Comm) error) []error {
	parts := make([][]uint64, n)
	for r := range parts {
		parts[r] = make([]uint64, arenaWords(n))
	}
	return onRanks(t, n, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		s := stateOf(c)
		s.mu.Lock()
		s.arena = newArena(c.Rank(), parts, nil)
		s.mu.Unlock()
		return f(ctx, c)
	})
}

func TestArenaEqualsTheOracle(t *testing.T) {
	for _, size := range []int{2, 3, 4, 7} {
		cases := []reduceCase{
			caseOf("sum of float32", Sum, sumOf[float32]), caseOf("concat", concat, concatOne), caseOf("max of int16", Max, maxOf[int16]),
		}
		for r, err := range inShared(t, size, func(ctx context.Context, c *mpi.Comm) error {
			for i, n := range []int{1, 2, 1000, 1024, 2048, 2049, 5000, 17_000, 70_001} {
				for j, k := range cases {
					if n > 1024 && j == 1 {
						continue
					}
					if err := k.run(ctx, c, i, n, (i+j)%size, (i+j)%2 == 0); err != nil {
						return fmt.Errorf("%s, %d elements: %w", k.name, n, err)
					}
					if err := Barrier(ctx, c); err != nil {
						return err
					}
				}
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("%d ranks: rank %d: %v", size, r, err)
			}
		}
	}
}

// Nobody leaves a barrier before the last has come, also when the others sleep by then.
func TestArenaBarrierWaits(t *testing.T) {
	var mu sync.Mutex
	come := 0
	for r, err := range inShared(t, 3, func(ctx context.Context, c *mpi.Comm) error {
		for i := 1; i <= 20; i++ {
			if c.Rank() == i%3 {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
				<-ctx.Done()
				cancel()
			}
			mu.Lock()
			come++
			mu.Unlock()
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			mu.Lock()
			early := come < 3*i
			mu.Unlock()
			if early {
				return errors.New("left before all had come")
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestArenaFaults(t *testing.T) {
	t.Run("mismatch", func(t *testing.T) {
		for r, err := range inShared(t, 3, func(ctx context.Context, c *mpi.Comm) error {
			n := 4
			if c.Rank() == 1 {
				n = 5
			}
			v := make([]int32, n)
			return within(Allreduce(ctx, c, v, v, Sum), mpi.ErrMismatch)
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
	t.Run("deadline", func(t *testing.T) {
		var gone sync.WaitGroup
		gone.Add(2)
		for r, err := range inShared(t, 3, func(ctx context.Context, c *mpi.Comm) error {
			if c.Rank() == 2 {
				gone.Wait()
				return nil
			}
			defer gone.Done()
			if c.Rank() == 0 {
				short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				return within(Barrier(short, c), context.DeadlineExceeded)
			}
			return within(Barrier(ctx, c), mpi.ErrCancelled)
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}
