package mpitest

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// checkGiveUp: a member gives up making a communicator, or memory, before the others have come. They learn that, and the next
// call of all is no worse for what this one left behind, which may be longer than its own messages.
func checkGiveUp(ctx context.Context, c *mpi.Comm) error {
	whole := func(d *mpi.Comm, err error) error {
		if err != nil {
			return err
		}
		return shift(ctx, d, 0, d.Rank(), func(left int) int { return left })
	}
	calls := map[string]func(context.Context) error{
		"dup":   func(ctx context.Context) error { return whole(c.Dup(ctx)) },
		"split": func(ctx context.Context) error { return whole(c.Split(ctx, 0, -c.Rank())) },
		"allocshared": func(ctx context.Context) error {
			s, err := mpi.AllocShared[byte](ctx, c, 8)
			if err == nil {
				err = s.Free()
			}
			return err
		},
	}
	for _, gone := range []int{0, c.Size() - 1} {
		for _, first := range []string{"dup", "split", "allocshared"} {
			ended, err := givesUp(ctx, c, gone, calls[first])
			if err := errors.Join(err, cancelledBy(gone, c, ended)); err != nil {
				return fmt.Errorf("%s: %w", first, err)
			}
			for _, then := range []string{"dup", "split"} {
				if err := calls[then](ctx); err != nil {
					return fmt.Errorf("%s after a %s that rank %d gave up: %w", then, first, gone, err)
				}
			}
		}
	}
	return nil
}

// givesUp has one rank give up a collective call before the others come to it, and reports how it ends for
// this one.
func givesUp(ctx context.Context, c *mpi.Comm, gone int, call func(context.Context) error) (ended, err error) {
	const tag = 77
	if c.Rank() != gone {
		if err := recvOnly(ctx, c, make([]byte, 1), gone, tag); err != nil {
			return nil, err
		}
		return call(ctx), nil
	}
	over, cancel := context.WithCancel(ctx)
	cancel() // no time passes: simulations have their own
	ended = call(over)
	for r := range c.Size() {
		if r != gone {
			if err := mpi.Send(ctx, c, []byte{1}, r, tag); err != nil {
				return ended, err
			}
		}
	}
	return ended, nil
}

// cancelledBy checks how a call ended that one rank gave up.
func cancelledBy(gone int, c *mpi.Comm, ended error) error {
	if c.Rank() == gone {
		if !errors.Is(ended, context.Canceled) {
			return fmt.Errorf("given up: %v, want %v", ended, context.Canceled)
		}
		return nil
	}
	if err := wants("call that another rank gave up", ended, mpi.ErrCancelled); err != nil {
		return err
	}
	var at *mpi.Error
	if errors.As(ended, &at); at.Peer != gone {
		return fmt.Errorf("%v names rank %d, want %d", ended, at.Peer, gone)
	}
	return nil
}
