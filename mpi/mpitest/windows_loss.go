package mpitest

import (
	"context"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// lossWindowTarget: the dead rank holds the lock of its part, and the others are in operations on that. Each learns
// whom it waits for. Among the living the window goes on.
func lossWindowTarget(ctx context.Context, c *mpi.Comm, die func()) error {
	const part = 20_000 // a few pieces
	dead := c.Size() - 1
	w, err := mpi.NewWindow(ctx, c, make([]int64, part))
	if err != nil {
		return err
	}
	defer w.Release()
	if last(c) {
		if err := w.Lock(ctx, dead, mpi.LockExclusive); err != nil {
			return err
		}
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	if last(c) {
		return dieAfterAll(ctx, c, die)
	}
	if err := mpi.Send(ctx, c, filled(5, 8), dead, 5); err != nil {
		return err
	}
	v := make([]int64, part)
	waits := []struct {
		name string
		call func() error
	}{
		{"lock", func() error { return w.Lock(ctx, dead, mpi.LockShared) }},
		{"get", func() error { return w.Get(ctx, dead, 0, v) }},
		{"flush", func() error {
			if err := w.Put(ctx, dead, 0, v); err != nil {
				return err
			}
			return w.Flush(ctx, dead)
		}},
		{"swap", func() error { _, err := w.CompareAndSwap(ctx, dead, 0, 0, 1); return err }},
	}
	k := waits[c.Rank()%len(waits)]
	for err == nil {
		err = k.call()
	}
	if err := names(k.name, err, c, dead); err != nil {
		return err
	}
	for _, k := range waits {
		if err := names("later "+k.name, k.call(), c, dead); err != nil {
			return err
		}
	}
	if err := names("fence", w.Fence(ctx), c, dead); err != nil {
		return err
	}
	right := (c.Rank() + 1) % dead
	if err := w.Put(ctx, right, c.Rank(), []int64{int64(c.Rank() + 1)}); err != nil {
		return fmt.Errorf("put to a living rank: %w", err)
	}
	if err := w.Get(ctx, right, c.Rank(), v[:1]); err != nil || v[0] != int64(c.Rank()+1) {
		return fmt.Errorf("get of a living rank: %d, want %d, %w", v[0], c.Rank()+1, err)
	}
	return livingMeet(ctx, c)
}

// lossWindowHolder: the dead rank holds the lock of a living rank's part, which others wait for.
func lossWindowHolder(ctx context.Context, c *mpi.Comm, die func()) error {
	w, err := mpi.NewWindow(ctx, c, make([]int64, 1))
	if err != nil {
		return err
	}
	defer w.Release()
	if last(c) {
		if err := w.Lock(ctx, 0, mpi.LockExclusive); err != nil {
			return err
		}
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	if last(c) {
		return dieAfterAll(ctx, c, die)
	}
	if err := mpi.Send(ctx, c, filled(5, 8), c.Size()-1, 5); err != nil {
		return err
	}
	if err := w.Lock(ctx, 0, mpi.LockExclusive); err != nil {
		return fmt.Errorf("lock that the dead rank held: %w", err)
	}
	if err := w.Unlock(ctx, 0); err != nil {
		return err
	}
	return livingMeet(ctx, c)
}

// livingMeet waits until all living ranks have come, so that none releases its part before.
func livingMeet(ctx context.Context, c *mpi.Comm) error {
	var rs []mpi.Request
	for r := range c.Size() - 1 {
		if r != c.Rank() {
			rs = append(rs, mpi.Isend(c, []byte{1}, r, 902), mpi.Irecv(c, make([]byte, 1), r, 902))
		}
	}
	return mpi.WaitAll(ctx, rs)
}
