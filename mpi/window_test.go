package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// onBoth runs f on every rank of a world over shared memory and of a simulated one.
func onBoth(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm) error) {
	t.Run("shm", func(t *testing.T) { runWorlds(t, mpitest.SharedMemoryWorlds(t, n), f) })
	t.Run("sim", func(t *testing.T) {
		worlds, err := mpi.Local(n, mpi.LocalOptions{})
		if err != nil {
			t.Fatal(err)
		}
		runWorlds(t, worlds, f)
	})
}

func runWorlds(t testing.TB, worlds []*mpi.World, f func(ctx context.Context, c *mpi.Comm) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for r, w := range worlds {
		all.Go(func() {
			if err := f(ctx, w.Comm()); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			_ = w.Close(ctx)
		})
	}
	all.Wait()
}

// parts makes windows in memory from Alloc and in ordinary memory.
func parts(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm, make func(n int) []float64) error) {
	for _, kind := range []string{"alloc", "heap"} {
		t.Run(kind, func(t *testing.T) {
			onBoth(t, n, func(ctx context.Context, c *mpi.Comm) error {
				var slabs [][]float64
				err := f(ctx, c, func(n int) []float64 {
					if kind == "heap" {
						return make([]float64, n)
					}
					buf, err := mpi.Alloc[float64](c, n)
					if err != nil {
						panic(err)
					}
					slabs = append(slabs, buf)
					return buf
				})
				for _, s := range slabs {
					if ferr := mpi.Free(c, s); err == nil {
						err = ferr
					}
				}
				return err
			})
		})
	}
}

func TestWindowPutGet(t *testing.T) {
	parts(t, 3, func(ctx context.Context, c *mpi.Comm, make_ func(int) []float64) error {
		const n = 50_000 // several pieces
		mine := make_(n + c.Rank())
		w, err := mpi.NewWindow(ctx, c, mine)
		if err != nil {
			return err
		}
		for r := range c.Size() {
			if w.Len(r) != n+r {
				return fmt.Errorf("part of rank %d has %d elements, want %d", r, w.Len(r), n+r)
			}
		}
		next := (c.Rank() + 1) % c.Size()
		src := make([]float64, n)
		for i := range src {
			src[i] = float64(c.Rank()*n + i)
		}
		if err := w.Put(ctx, next, c.Rank()%2, src); err != nil {
			return err
		}
		clear(src)
		if err := w.Fence(ctx); err != nil {
			return err
		}
		from := (c.Rank() + c.Size() - 1) % c.Size()
		for i := range n {
			if got, want := mine[i+from%2], float64(from*n+i); got != want {
				return fmt.Errorf("element %d is %v, want %v of rank %d", i, got, want, from)
			}
		}
		back := make([]float64, n)
		if err := w.Get(ctx, next, c.Rank()%2, back); err != nil {
			return err
		}
		for i := range back {
			if back[i] != float64(c.Rank()*n+i) {
				return fmt.Errorf("got %v back at %d", back[i], i)
			}
		}
		if err := w.Put(ctx, next, n+next-1, []float64{1, 2}); !errors.Is(err, mpi.ErrTruncated) {
			return fmt.Errorf("a put beyond the end: %v", err)
		}
		if err := w.Get(ctx, c.Size(), 0, back); !errors.Is(err, mpi.ErrRank) {
			return fmt.Errorf("a get from nobody: %v", err)
		}
		if err := w.Free(ctx); err != nil {
			return err
		}
		if err := w.Put(ctx, next, 0, src[:1]); !errors.Is(err, mpi.ErrClosed) {
			return fmt.Errorf("a put after Free: %v", err)
		}
		return nil
	})
}

// TestWindowDirect: memory from Alloc is reached as memory over shm, and only there.
func TestWindowDirect(t *testing.T) {
	for _, alloc := range []bool{true, false} {
		runWorlds(t, mpitest.SharedMemoryWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
			buf := make([]int32, 1000)
			if alloc {
				var err error
				if buf, err = mpi.Alloc[int32](c, 2000); err != nil {
					return err
				}
				buf = buf[500:1500] // a part of a slab will do
			}
			w, err := mpi.NewWindow(ctx, c, buf)
			if err != nil {
				return err
			}
			if w.Direct(1-c.Rank()) != alloc {
				return fmt.Errorf("memory from Alloc: %v; direct: %v", alloc, w.Direct(1-c.Rank()))
			}
			if alloc {
				if err := mpi.Free(c, buf[:1]); err == nil {
					return errors.New("memory was freed by a slice of its middle")
				}
			}
			return w.Free(ctx)
		})
	}
}

func TestWindowAccumulate(t *testing.T) {
	parts(t, 4, func(ctx context.Context, c *mpi.Comm, make_ func(int) []float64) error {
		const n, rounds = 3000, 5
		mine := make_(n)
		w, err := mpi.NewWindow(ctx, c, mine)
		if err != nil {
			return err
		}
		src := make([]float64, n)
		for i := range src {
			src[i] = float64(i)
		}
		for range rounds {
			for r := range c.Size() {
				if err := w.Accumulate(ctx, r, 0, src, mpi.AccSum); err != nil {
					return err
				}
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		for i, got := range mine {
			if want := float64(i * rounds * c.Size()); got != want {
				return fmt.Errorf("sum at %d is %v, want %v", i, got, want)
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if err := w.Accumulate(ctx, 0, 0, []float64{float64(1e9 + c.Rank())}, mpi.AccMax); err != nil {
			return err
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if top := 1e9 + float64(c.Size()-1); c.Rank() == 0 && mine[0] != top {
			return fmt.Errorf("maximum is %v, want %v", mine[0], top)
		}
		if err := w.Accumulate(ctx, 0, 0, src[:1], mpi.AccXor); !errors.Is(err, mpi.ErrMismatch) {
			return fmt.Errorf("exclusive or of floats: %v", err)
		}
		return w.Free(ctx)
	})
}

// testAtomics counts with all ranks at once, on every kind of element size.
func testAtomics[T interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint64 | ~float32
}](t *testing.T) {
	const ranks, rounds = 4, 25
	onBoth(t, ranks, func(ctx context.Context, c *mpi.Comm) error {
		buf, err := mpi.Alloc[T](c, 3)
		if err != nil {
			return err
		}
		w, err := mpi.NewWindow(ctx, c, buf)
		if err != nil {
			return err
		}
		var seen []T
		for range rounds {
			was, err := w.FetchAndOp(ctx, 1, 0, 1, mpi.AccSum)
			if err != nil {
				return err
			}
			seen = append(seen, was)
			for { // add one by compare and swap
				old, err := w.FetchAndOp(ctx, 2, 1, 0, mpi.AccNone)
				if err != nil {
					return err
				}
				if got, err := w.CompareAndSwap(ctx, 2, 1, old, old+1); err != nil {
					return err
				} else if got == old {
					break
				}
			}
		}
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != rounds {
			return fmt.Errorf("a counter went %v", seen)
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if c.Rank() == 1 && buf[0] != ranks*rounds || c.Rank() == 2 && buf[1] != ranks*rounds {
			return fmt.Errorf("counted %v, want %d", buf, ranks*rounds)
		}
		if err := w.Free(ctx); err != nil {
			return err
		}
		return mpi.Free(c, buf)
	})
}

type celsius float32

func TestWindowAtomics(t *testing.T) {
	t.Run("int8", testAtomics[int8])
	t.Run("int16", testAtomics[int16])
	t.Run("int32", testAtomics[int32])
	t.Run("int64", testAtomics[int64])
	t.Run("uint64", testAtomics[uint64])
	t.Run("celsius", testAtomics[celsius])
}

func TestWindowLock(t *testing.T) {
	parts(t, 4, func(ctx context.Context, c *mpi.Comm, make_ func(int) []float64) error {
		mine := make_(2)
		w, err := mpi.NewWindow(ctx, c, mine)
		if err != nil {
			return err
		}
		const rounds, target = 30, 1
		for range rounds { // not atomic without the lock
			if err := w.Lock(ctx, target, mpi.LockExclusive); err != nil {
				return err
			}
			v := make([]float64, 2)
			if err := w.Get(ctx, target, 0, v); err != nil {
				return err
			}
			v[0], v[1] = v[0]+1, v[1]-1
			if err := w.Put(ctx, target, 0, v); err != nil {
				return err
			}
			if err := w.Unlock(ctx, target); err != nil {
				return err
			}
			if err := w.Lock(ctx, target, mpi.LockShared); err != nil {
				return err
			}
			if err := w.Get(ctx, target, 0, v); err != nil {
				return err
			}
			if v[0]+v[1] != 0 {
				return fmt.Errorf("half a change was seen: %v", v)
			}
			if err := w.Unlock(ctx, target); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if want := float64(rounds * c.Size()); c.Rank() == target && mine[0] != want {
			return fmt.Errorf("counted %v, want %v", mine[0], want)
		}
		// Nobody waits for a lock that another keeps beyond his time.
		if c.Rank() == 0 {
			if err := w.Lock(ctx, target, mpi.LockExclusive); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if c.Rank() >= 2 {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := w.Lock(short, target, mpi.LockExclusive); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("a lock that is held was granted: %v", err)
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := w.Unlock(ctx, target); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if err := w.Lock(ctx, target, mpi.LockExclusive); err != nil {
			return fmt.Errorf("after wishes were given up: %w", err)
		}
		if err := w.Unlock(ctx, target); err != nil {
			return err
		}
		return w.Free(ctx)
	})
}

// TestWindowOwnerComputes: the owner takes part in nothing, and yet all is done.
func TestWindowOwnerComputes(t *testing.T) {
	parts(t, 2, func(ctx context.Context, c *mpi.Comm, make_ func(int) []float64) error {
		mine := make_(10)
		w, err := mpi.NewWindow(ctx, c, mine)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := w.Accumulate(ctx, 1, 3, []float64{4}, mpi.AccReplace); err != nil {
				return err
			}
			if err := w.Flush(ctx, 1); err != nil {
				return err
			}
			got := make([]float64, 1)
			if err := w.Get(ctx, 1, 3, got); err != nil || got[0] != 4 {
				return fmt.Errorf("got %v: %v", got, err)
			}
			return errors.Join(mpi.Send(ctx, c, got, 1, 0), w.Free(ctx))
		}
		// Without a call of the library until rank 0 has seen the effect.
		deadline := time.Now().Add(20 * time.Second)
		x := 1.0
		for {
			for range 1000 {
				x = math.Sqrt(x + 2)
			}
			if _, ok, err := c.Iprobe(0, 0); err != nil {
				return err
			} else if ok {
				break
			}
			if time.Now().After(deadline) {
				return errors.New("rank 0 did not finish")
			}
		}
		if _, err := mpi.Recv(ctx, c, mine[:1], 0, 0); err != nil {
			return err
		}
		return w.Free(ctx)
	})
}
