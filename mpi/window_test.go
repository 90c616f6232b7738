package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// onEach runs f on every rank of a world over shared memory, of one over sockets, and of a simulated one.
func onEach(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm) error) {
	t.Run("shm", func(t *testing.T) { mpitest.Together(t, mpitest.SharedMemoryWorlds(t, n), f) })
	t.Run("tcp", func(t *testing.T) { mpitest.Together(t, mpitest.TCPWorlds(t, n), f) })
	t.Run("sim", func(t *testing.T) {
		worlds, err := mpi.Local(n, mpi.LocalOptions{})
		if err != nil {
			t.Fatal(err)
		}
		mpitest.Together(t, worlds, f)
	})
}

// parts makes windows in memory from Alloc and in ordinary memory.
func parts(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm, make func(n int) []float64) error) {
	for _, kind := range []string{"alloc", "heap"} {
		t.Run(kind, func(t *testing.T) {
			onEach(t, n, func(ctx context.Context, c *mpi.Comm) error {
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

// TestWindowDirect: memory from Alloc is reached as memory over shm, and only there.
func TestWindowDirect(t *testing.T) {
	for _, alloc := range []bool{true, false} {
		mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
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

// testAtomics counts with all ranks at once, on every kind of element size.
func testAtomics[T interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint64 | ~float32
}](t *testing.T) {
	const ranks, rounds = 4, 25
	onEach(t, ranks, func(ctx context.Context, c *mpi.Comm) error {
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
		deadline := time.Now().Add(time.Minute)
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

// TestFreeAfterRelease: the window has ended on a member, after an error or an earlier Free, and the others call Free. It takes part.
func TestFreeAfterRelease(t *testing.T) {
	onEach(t, 3, func(ctx context.Context, c *mpi.Comm) error {
		mine := make([]int, 1)
		w, err := mpi.NewWindow(ctx, c, mine)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := w.Put(ctx, 1, 0, []int{7}); err != nil {
				return err
			}
			w.Release() // the put may not have arrived yet
		}
		if err := w.Free(ctx); err != nil {
			return err
		}
		if c.Rank() == 1 && mine[0] != 7 {
			return fmt.Errorf("the element is %d, want 7", mine[0])
		}
		return nil
	})
}

// TestWindowOfOtherElements: members whose parts have elements of different kinds are told so, also where they are as long.
func TestWindowOfOtherElements(t *testing.T) {
	onEach(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		var err error
		if c.Rank() == 0 {
			_, err = mpi.NewWindow(ctx, c, make([]float32, 4))
		} else {
			_, err = mpi.NewWindow(ctx, c, make([]int32, 4))
		}
		if !errors.Is(err, mpi.ErrMismatch) {
			return fmt.Errorf("a window of float32 and int32: %v, want ErrMismatch", err)
		}
		return nil
	})
}

// TestReleaseBesideOperations: parts stay mapped until the copies of other goroutines from and to them have ended. Who asks
// meanwhile learns that they are gone.
func TestReleaseBesideOperations(t *testing.T) {
	const n = 1 << 20
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
		for range 20 {
			buf, err := mpi.Alloc[float32](c, n)
			if err != nil {
				return err
			}
			w, err := mpi.NewWindow(ctx, c, buf)
			if err != nil {
				return err
			}
			ended := make(chan error, 2)
			at, asked := make(chan struct{}, 2), make(chan struct{})
			use := func(op func(mine []float32) error) {
				mine := make([]float32, n/2)
				at <- struct{}{}
				for {
					if err := op(mine); err != nil {
						ended <- err
						return
					}
				}
			}
			go use(func(mine []float32) error { return w.Put(ctx, 1-c.Rank(), 0, mine) })
			go use(func(mine []float32) error { return w.Get(ctx, 1-c.Rank(), n/2, mine) })
			go func() { // the race detector sees whether it may ask
				for w.Direct(1 - c.Rank()) {
					runtime.Gosched()
				}
				close(asked)
			}()
			<-at
			<-at
			w.Release()
			<-asked
			for range 2 {
				if err := <-ended; !errors.Is(err, mpi.ErrClosed) {
					return fmt.Errorf("beside Release: %v, want ErrClosed", err)
				}
			}
			other := 1 - c.Rank() // it may still write to this part
			if _, err := mpi.Sendrecv(ctx, c, []byte{1}, other, 1, make([]byte, 1), other, 1); err != nil {
				return err
			}
			if err := mpi.Free(c, buf); err != nil {
				return err
			}
		}
		return nil
	})
}
