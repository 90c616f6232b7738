package collective

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// An operator panics on one rank, or ends its goroutine, and the rank goes on: that and the others learn that collectives are
// over, and their worlds close.
func TestOperatorThatDoesNotReturn(t *testing.T) {
	t.Parallel() // mostly waits
	for name, leave := range map[string]func(){"panic": func() { panic("of the operator") }, "Goexit": runtime.Goexit} {
		for _, n := range []int{4, 200_000} {
			rank := func(ctx context.Context, c *mpi.Comm) error { return operatorLeaves(ctx, c, n, leave) }
			for _, way := range []string{"messages", MemoryPlan, DirectPlan} {
				t.Run(fmt.Sprintf("%s in %s of %d", name, way, n), func(t *testing.T) {
					var errs []error
					if way == "messages" {
						errs = onRanks(t, 3, mpi.LocalOptions{}, rank)
					} else {
						errs = inShared(t, way, 3, mpi.LocalOptions{}, rank)
					}
					if err := errors.Join(errs...); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

func operatorLeaves(ctx context.Context, c *mpi.Comm, n int, leave func()) error {
	v := onHeap(c, n)
	op := OpFunc("leaves", func(dst, a, b []int32) {
		if c.Rank() == 0 {
			leave()
		}
		copy(dst, a)
	})
	called := make(chan error, 1)
	go func() {
		err := errKilled // unless it returns
		defer func() {
			recover()
			called <- err
		}()
		err = Allreduce(ctx, c, v.send[:n], v.recv[:n], op)
	}()
	err := <-called
	if c.Rank() == 0 {
		if err != errKilled {
			return fmt.Errorf("the operator has returned, with %v", err)
		}
		return within(Barrier(ctx, c), ErrBroken)
	}
	if err == nil { // it needs nothing of what rank 0 combines
		err = Barrier(ctx, c)
	}
	if within(err, mpi.ErrCancelled) != nil || !strings.Contains(err.Error(), "operator leaves did not return") {
		return fmt.Errorf("rank %d got %v, want that the operator of rank 0 did not return", c.Rank(), err)
	}
	return nil
}
