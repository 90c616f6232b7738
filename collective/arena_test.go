package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// inShared runs f on n ranks of this process that share an arena.
func inShared(t testing.TB, n int, f func(ctx context.Context, c *mpi.Comm) error) []error {
	parts := make([][]uint64, n)
	for r := range parts {
		parts[r] = make([]uint64, arenaWords(n))
	}
	return onRanks(t, n, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		force := map[plan.Kind]string{}
		for _, k := range plan.Kinds() {
			if known(k, MemoryPlan) {
				force[k] = MemoryPlan
			}
		}
		if err := Configure(c, Config{Force: force}); err != nil {
			return err
		}
		s := stateOf(c)
		s.arena.Store(newArena(s, parts, float64(len(parts))/float64(runtime.NumCPU())))
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
				if err := moveAll[int16](ctx, c, i, n, i%size, i%2 == 0); err != nil {
					return fmt.Errorf("%d elements: %w", n, err)
				}
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

// Ranks that need nothing from the others run ahead of them, and nothing is overwritten
// that somebody has still to read.
func TestArenaRunsAhead(t *testing.T) {
	for r, err := range inShared(t, 4, func(ctx context.Context, c *mpi.Comm) error {
		rng := rand.New(rand.NewPCG(7, uint64(c.Rank())))
		v, sum := make([]int64, 3), make([]int64, 3)
		for i := range int64(600) {
			root := int(i/100) % c.Size()
			for j := range v {
				v[j] = i * int64(j+1)
			}
			if rng.IntN(50) == 0 {
				runtime.Gosched()
			}
			if c.Rank() != root {
				clear(v)
			}
			if err := Bcast(ctx, c, v, root); err != nil {
				return err
			}
			if v[2] != 3*i {
				return fmt.Errorf("bcast %d brought %v", i, v)
			}
			if err := Reduce(ctx, c, v, sum, Sum, root); err != nil {
				return err
			}
			if c.Rank() == root && sum[1] != 8*i {
				return fmt.Errorf("reduce %d made %v", i, sum)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// BenchmarkArena is a collective whose other rank has always come already: what
// it costs besides waiting.
func BenchmarkArena(b *testing.B) {
	for _, kind := range []plan.Kind{plan.Barrier, plan.Allreduce, plan.Bcast} {
		b.Run(kind.String(), func(b *testing.B) {
			var mu sync.Mutex
			mu.Lock()
			for _, err := range inShared(b, 2, func(ctx context.Context, c *mpi.Comm) error {
				if c.Rank() == 1 {
					mu.Lock() // until rank 0 is done
					return nil
				}
				defer mu.Unlock()
				v := []float32{1, 2}
				a := stateOf(c).arena.Load()
				ahead := func(s signature) {
					for turn := range uint64(slots) {
						at := slot(turn)
						copy(a.bytesAt(1, at+1, signatureBytes), s[:])
						a.parts[1][at] = 1 << 60
					}
				}
				do := func() error {
					switch kind {
					case plan.Barrier:
						return Barrier(ctx, c)
					case plan.Allreduce:
						return Allreduce(ctx, c, v, v, Sum)
					}
					return Bcast(ctx, c, v, 0)
				}
				e := key{kind: kind, typ: typeOf[float32](), count: len(v), here: true}
				if kind == plan.Barrier {
					e.typ, e.count = elemType{size: 1}, 0
				}
				ahead(e.sign(byMemory))
				b.ResetTimer()
				for range b.N {
					if err := do(); err != nil {
						return err
					}
				}
				return nil
			}) {
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
}
