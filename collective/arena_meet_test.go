package collective

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Whoever is next shows what it contributes at once, and nobody else does: what stands in a slot is for the meeting of its
// turn.
func TestBeginsAtOnceInTurn(t *testing.T) {
	aloneInArena(t, func(ctx context.Context, c *mpi.Comm) error {
		a := stateOf(c).arena.Load()
		begun := func() (turns []uint64) {
			for turn := range uint64(slots) {
				if shown := atomic.LoadUint64(&a.own[slot(turn)]); shown != 0 {
					turns = append(turns, shown)
				}
			}
			return turns
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 2)
		for i := range uint64(2) {
			go func() { ended <- Barrier(ctx, c) }()
			lookUntil(ctx, func() bool { return ticketsOf(c) > i })
			if err := equal("turns begun", begun(), []uint64{1}); err != nil {
				return err
			}
		}
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, mpi.ErrCancelled) {
				return fmt.Errorf("%v, want the end of the context", err)
			}
		}
		// Others may still look for the meeting that has failed.
		if err := equal("turns begun after the first has failed", begun(), []uint64{1}); err != nil {
			return err
		}
		s := stateOf(c)
		s.mu.Lock()
		defer s.mu.Unlock()
		next := &meeting{arena: a, entry: &entry{atOnce: true}, ticket: a.served.Load() + 1}
		if s.beginAtOnce(next); next.begun {
			return errors.New("a meeting has begun after one that failed")
		}
		return nil
	})
}

// Slots are freed for the next half of the ring while a rank waits for the others, unless they have not come so far: then
// the rank waits for them before it writes.
func TestFreesSlotsAhead(t *testing.T) {
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		a := stateOf(c).arena.Load()
		for turn := uint64(1); turn < 3*slots; turn++ {
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			want := uint64(0)
			if next := turn + 1; next >= slots {
				want = next / halfRing * halfRing
			}
			if a.turn != turn || a.freed != want {
				return fmt.Errorf("in turn %d it has freed turn %d, want %d of %d", a.turn, a.freed, want, turn)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	aloneInArena(t, func(ctx context.Context, c *mpi.Comm) error {
		a := stateOf(c).arena.Load()
		v := []int32{1}
		for range slots - 1 {
			if err := Bcast(ctx, c, v, c.Rank()); err != nil {
				return err
			}
		}
		if a.turn != slots-1 || a.freed != 0 {
			return fmt.Errorf("in turn %d it has freed turn %d, though the other has not come", a.turn, a.freed)
		}
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		return within(Bcast(short, c, v, c.Rank()), context.DeadlineExceeded)
	})
}
