package mpitest

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// The checks of one-sided communication.

// oneSided makes a check of windows: with parts in ordinary memory, and in memory from mpi.Alloc, which ranks
// of one host reach as memory where they can. Over the system's MPI library there are no windows, and that is all
// there is to check.
func oneSided(check func(ctx context.Context, c *mpi.Comm, part func(n int) []float64) error) func(context.Context, *mpi.Comm) error {
	return func(ctx context.Context, c *mpi.Comm) error {
		if c.Caps().Name == "mpi" {
			_, err := mpi.NewWindow(ctx, c, make([]float64, 1))
			return wants("a window over the system's MPI library", err, mpi.ErrTransport)
		}
		if err := check(ctx, c, func(n int) []float64 { return make([]float64, n) }); err != nil {
			return fmt.Errorf("ordinary memory: %w", err)
		}
		var slabs [][]float64
		var failed error
		err := check(ctx, c, func(n int) []float64 {
			buf, err := mpi.Alloc[float64](c, n)
			if failed = errors.Join(failed, err); err != nil {
				return make([]float64, n)
			}
			slabs = append(slabs, buf)
			return buf
		})
		for _, s := range slabs {
			failed = errors.Join(failed, mpi.Free(c, s))
		}
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("memory from Alloc: %w", err)
		}
		return nil
	}
}

// checkWindowPutGet: elements go and come, in several pieces, and nothing goes beyond a part.
func checkWindowPutGet(ctx context.Context, c *mpi.Comm, part func(int) []float64) error {
	const n = 50_000 // several pieces
	mine := part(n + c.Rank())
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
}

// checkWindowAccumulate: what all ranks do to the same elements adds up.
func checkWindowAccumulate(ctx context.Context, c *mpi.Comm, part func(int) []float64) error {
	const n, rounds = 3000, 5
	mine := part(n)
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
}

// checkWindowLock: the lock of a part keeps others out who ask for it.
func checkWindowLock(ctx context.Context, c *mpi.Comm, part func(int) []float64) error {
	mine := part(2)
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
		over, cancel := context.WithCancel(ctx)
		cancel() // no time passes: simulations have their own
		if err := w.Lock(over, target, mpi.LockExclusive); !errors.Is(err, context.Canceled) {
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
}

// checkWindowGiveUp: a member gives up making a window, or fencing it, before the others have come.
func checkWindowGiveUp(ctx context.Context, c *mpi.Comm, part func(int) []float64) error {
	for _, gone := range []int{0, c.Size() - 1} {
		mine := part(c.Size())
		ended, err := givesUp(ctx, c, gone, func(ctx context.Context) error { _, err := mpi.NewWindow(ctx, c, mine); return err })
		if err := errors.Join(err, cancelledBy(gone, c, ended)); err != nil {
			return fmt.Errorf("window: %w", err)
		}
		w, err := mpi.NewWindow(ctx, c, mine)
		if err != nil {
			return fmt.Errorf("after a window that rank %d gave up: %w", gone, err)
		}
		ended, err = givesUp(ctx, c, gone, w.Fence)
		if ended != nil || c.Rank() == gone { // else this rank had heard from all of them that they had come
			err = errors.Join(err, cancelledBy(gone, c, ended))
		}
		if err != nil {
			return fmt.Errorf("fence: %w", err)
		}
		for r := range c.Size() {
			if err := w.Put(ctx, r, c.Rank(), []float64{float64(1 + c.Rank())}); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return fmt.Errorf("after a fence that rank %d gave up: %w", gone, err)
		}
		for r, v := range mine {
			if v != float64(1+r) {
				return fmt.Errorf("after a fence: element %d is %v, want %v", r, v, 1+r)
			}
		}
		if err := w.Free(ctx); err != nil {
			return err
		}
	}
	return nil
}
