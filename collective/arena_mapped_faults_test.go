package collective

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Ranks that read each other's vectors from mpi.Alloc as memory of their own, and call different things, do not
// come, or give up.

// mappedModel has long collectives take the arena's pieces: they beat messages and the kernel, and nothing
// beats memory that is mapped.
func mappedModel() *plan.Model {
	m := *defaultModel
	m.Host.OneWay, m.Host.Exchange, m.Cross = plan.Linear(1e9, 1), plan.Linear(1e9, 1), 1e-9
	m.Read, m.Given, m.Copy = plan.Linear(1e9, 1), plan.Linear(1e9, 1), plan.Linear(0, 0)
	return &m
}

// agreeToMap makes as many calls as it takes until the ranks have an arena and know that all have their vectors from
// mpi.Alloc. Each of them has 32 KiB at least.
func agreeToMap(ctx context.Context, c *mpi.Comm, v vectors) error {
	for range arenaAfter + 1 {
		if err := Barrier(ctx, c); err != nil {
			return err
		}
	}
	for i := range 4 * slots {
		if err := Bcast(ctx, c, v.recv[:slotBytes], i%2*(c.Size()-1)); err != nil {
			return err
		}
	}
	a := stateOf(c).arena.Load()
	if a == nil || !a.allMapped[long] {
		return errors.New("the ranks do not share memory, or do not map each other's vectors")
	}
	return nil
}

// whereMapped runs a test of each collective that can read mapped vectors, on a communicator whose ranks do so. The
// test breaks it.
func whereMapped(t *testing.T, size int, test func(ctx context.Context, c *mpi.Comm, name string, op caller, v vectors, n int) error) {
	calls := everyCall()
	overSharedMemory(t, size, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Model: mappedModel()}); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(calls)) {
			kind, err := plan.ParseKind(strings.TrimSuffix(name, "v"))
			if err != nil || !reads(kind) || name == "alltoallv" {
				continue
			}
			for _, n := range arenaLengths()[1:] {
				v, err := onSlab(c, n+1)
				if err != nil {
					return err
				}
				d, err := c.Dup(ctx)
				if err != nil {
					return err
				}
				if err := agreeToMap(ctx, d, v); err != nil {
					return err
				}
				if err := test(ctx, d, name, calls[name], v, n); err != nil {
					return fmt.Errorf("%s of %d: %w", name, n, err)
				}
				if err := mapsFor(d, kind); err != nil {
					return fmt.Errorf("%s of %d: %w", name, n, err)
				}
				// Nobody frees while another still finds out.
				if err := Barrier(ctx, c); err != nil {
					return err
				}
				d.Free()
				if err := errors.Join(mpi.Free(c, v.send), mpi.Free(c, v.recv)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// mapsFor fails unless a kind of collective that has been called on c reads mapped vectors.
func mapsFor(c *mpi.Comm, kind plan.Kind) error {
	s := stateOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.kind == kind && e.typ == typeOf[int32]() && !e.readsMapped {
			return fmt.Errorf("%v of %d elements is not one that reads mapped vectors, but of plan %s", kind, e.count, e.plan.Name)
		}
	}
	return nil
}

func TestMappedMismatch(t *testing.T) {
	t.Parallel() // mostly waits
	for _, at := range []struct{ size, odd int }{{2, 1}, {3, 0}, {3, 2}} {
		if need.RaceDetector && at.size > 2 {
			continue
		}
		odd := at.odd
		{
			whereMapped(t, at.size, func(ctx context.Context, c *mpi.Comm, name string, op caller, v vectors, n int) error {
				mine := n
				if c.Rank() == odd {
					mine++
				}
				err := op(ctx, c, v, mine)
				if err == nil { // its part does not need the odd one
					err = Barrier(ctx, c)
				}
				if err := within(err, mpi.ErrMismatch); err != nil {
					return fmt.Errorf("rank %d differs: %w", odd, err)
				}
				if strings.HasSuffix(name, "v") {
					return nil // the error has hashes of counts
				}
				for _, want := range []string{fmt.Sprintf("%s of %d int32", name, n), fmt.Sprintf("%s of %d int32", name, n+1)} {
					if !strings.Contains(err.Error(), want) {
						return fmt.Errorf("rank %d differs: %q does not say %q", odd, err, want)
					}
				}
				return nil
			})
		}
	}
}

func TestMappedDeadline(t *testing.T) {
	t.Parallel() // mostly waits
	for _, size := range atMost(2, []int{2, 3}) {
		whereMapped(t, size, func(ctx context.Context, c *mpi.Comm, _ string, op caller, v vectors, n int) error {
			if c.Rank() == size-1 {
				return nil // it does not come
			}
			want := mpi.ErrCancelled
			if c.Rank() == 0 {
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				ctx, want = short, context.DeadlineExceeded
			}
			var err error
			for err == nil {
				err = op(ctx, c, v, n)
			}
			return within(err, want)
		})
	}
}

// A root gives up before anybody has read its vector, and uses it for something else, or gives it back: nobody takes
// that for the message.
func TestMappedWithdrawn(t *testing.T) {
	const n, root = 50_000, 2
	for _, what := range []string{"overwritten", "freed"} {
		t.Run(what, func(t *testing.T) {
			overSharedMemory(t, 3, func(ctx context.Context, c *mpi.Comm) error {
				v, err := onSlab(c, n)
				if err != nil {
					return err
				}
				d, err := c.Dup(ctx)
				if err != nil {
					return err
				}
				if err := errors.Join(Configure(d, Config{Model: mappedModel()}), agreeToMap(ctx, d, v)); err != nil {
					return err
				}
				if c.Rank() != root {
					if err := Barrier(ctx, c); err != nil {
						return err
					}
					return within(Bcast(ctx, d, v.recv[:n], root), mpi.ErrCancelled)
				}
				short, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				gaveUp := within(Bcast(short, d, v.recv[:n], root), context.DeadlineExceeded)
				if what == "freed" {
					err = mpi.Free(c, v.recv)
				}
				for i := range v.recv {
					if what == "overwritten" {
						v.recv[i] = -1
					}
				}
				return errors.Join(gaveUp, err, Barrier(ctx, c))
			})
		})
	}
}
