package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// A nonblocking collective ends on its own while the program computes.
func TestProgressWithoutWaiting(t *testing.T) {
	together(t, 4, func(ctx context.Context, c *mpi.Comm) error {
		v := []int64{int64(c.Rank())}
		r := Iallreduce(c, v, v, Sum)
		b := Ibarrier(c)
		// Rank 0 does not call for the allreduce until the others have ended both.
		if c.Rank() != 0 {
			if err := r.Wait(ctx); err != nil {
				return err
			}
			if err := b.Wait(ctx); err != nil {
				return err
			}
			if err := mpi.Send(ctx, c, v, 0, 1); err != nil {
				return err
			}
			return equal("sum", v, []int64{6})
		}
		for src := 1; src < 4; src++ {
			got := []int64{0}
			if _, err := mpi.Recv(ctx, c, got, src, 1); err != nil {
				return err
			}
		}
		if err := WaitAll(ctx, []Request{b, r}); err != nil {
			return err
		}
		return equal("sum", v, []int64{6})
	})
}

// A nonblocking collective wakes a look-out that may sleep for long, once.
func TestNonblockingWakesTheLookOut(t *testing.T) {
	s := &state{size: 2}
	w := &s.watch
	w.running, w.wake = true, make(chan struct{}, 1)
	started := func(nonblocking bool) { w.add(&execution{state: s, entry: &entry{}, nonblocking: nonblocking}) }
	w.dozing = true
	started(false)
	if len(w.wake) != 0 {
		t.Error("a blocking collective wakes it")
	}
	started(true)
	if len(w.wake) != 1 {
		t.Error("a nonblocking collective does not wake it")
	}
	<-w.wake
	started(true)
	if len(w.wake) != 0 {
		t.Error("it is woken although it looks every millisecond")
	}
}

// A mismatch of calls that are under way is found however many calls have come after them.
func TestMismatchBeforeManyCalls(t *testing.T) {
	t.Parallel() // mostly waits
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		requests := []Request{Ibcast(c, make([]int32, 1), 1-c.Rank())} // each waits for the other
		for range history {
			v := []int32{1}
			requests = append(requests, Iallreduce(c, v, v, Sum))
		}
		return within(WaitAll(ctx, requests), mpi.ErrMismatch)
	})
}

// One that has ended and has not been waited for waits for no rank any more.
func TestFinishedWaitsForNobody(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		r := Ibcast(c, []int32{1}, 0)
		for ended := false; !ended; runtime.Gosched() { // as the look-out does
			r.x.turn.Lock()
			ended = r.x.advance(ctx, tryOnce)
			r.x.turn.Unlock()
		}
		s := stateOf(c)
		s.mu.Lock()
		answer := s.describe(r.seq)
		s.mu.Unlock()
		if want := "it has finished bcast of 1 int32, root 0 #1 and not waited for it"; !strings.Contains(answer, want) {
			return fmt.Errorf("the answer does not say %q: %s", want, answer)
		}
		return r.Wait(ctx)
	})
}

// A rank that has called something and is seen nowhere in it, as one between the halves of a reproducible sum, does not
// say that it has not called it.
func TestDescribeKnowsWhatWasCalled(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		if err := Bcast(ctx, c, []int32{1}, 0); err != nil {
			return err
		}
		s := stateOf(c)
		s.mu.Lock()
		called, not := s.describe(1), s.describe(2)
		s.mu.Unlock()
		if want := "it has called bcast of 1 int32, root 0 #1 and is busy in it or done with it"; !strings.Contains(called, want) {
			return fmt.Errorf("the answer does not say %q: %s", want, called)
		}
		if want := "it has not called collective #2 yet"; !strings.Contains(not, want) {
			return fmt.Errorf("the answer does not say %q: %s", want, not)
		}
		return nil
	})
}

func TestSpentRequest(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		r := Ibarrier(c)
		if err := r.Wait(ctx); err != nil {
			return err
		}
		if err := within(r.Wait(ctx), mpi.ErrRequest); err != nil {
			return err
		}
		if _, err := r.Test(); !errors.Is(err, mpi.ErrRequest) {
			return fmt.Errorf("test of a spent request: %v", err)
		}
		if done, err := (Request{}).Test(); !done || err != nil {
			return fmt.Errorf("the zero request: %v, %v", done, err)
		}
		return nil
	})
}

// Nothing is allocated per call after the first. Mallocs of all ranks are counted, since
// testing.AllocsPerRun would run them on one processor.
func TestNoAllocationPerCall(t *testing.T) {
	if need.RaceDetector {
		t.Skip("the race detector allocates")
	}
	const size, calls = 2, 200
	counts := make([]int, size)
	for r := range counts {
		counts[r] = r + 1
	}
	for name, op := range map[string]func(ctx context.Context, c *mpi.Comm, v, w []float32) error{
		"barrier": func(ctx context.Context, c *mpi.Comm, v, w []float32) error { return Barrier(ctx, c) },
		"allreduce": func(ctx context.Context, c *mpi.Comm, v, w []float32) error {
			return Allreduce(ctx, c, v[:2], w[:2], Sum)
		},
		"bcast": func(ctx context.Context, c *mpi.Comm, v, w []float32) error {
			if err := Bcast(ctx, c, v[:100], 1); err != nil {
				return err
			}
			return Bcast(ctx, c, v[:100], 0) // so that no rank runs ahead, whose messages would have to be kept
		},
		"allgatherv": func(ctx context.Context, c *mpi.Comm, v, w []float32) error {
			return Allgatherv(ctx, c, v[:c.Rank()+1], w[:3], counts)
		},
		"nonblocking": func(ctx context.Context, c *mpi.Comm, v, w []float32) error {
			return Iallreduce(c, v[:2], w[:2], Sum).Wait(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, size, func(_ context.Context, c *mpi.Comm) error {
				// Over this fabric a context that can end costs an allocation per wait.
				ctx := context.Background()
				if err := Configure(c, Config{StallAfter: -1}); err != nil {
					return err
				}
				v, w := make([]float32, 4<<10), make([]float32, 4<<10)
				n, err := leastMallocs(calls, func() error { return op(ctx, c, v, w) })
				if err == nil && c.Rank() == 0 && n > calls/4 {
					err = fmt.Errorf("%d mallocs in %d calls", n, calls)
				}
				return err
			})
		})
	}
}

// leastMallocs counts the allocations of the whole process in so many calls, of several stretches in that with
// the fewest: what is kept for use again is made at first, and more of it when a rank runs ahead of the others.
func leastMallocs(calls int, call func() error) (uint64, error) {
	const stretches = 8
	least := uint64(math.MaxUint64)
	for range stretches {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			if err := call(); err != nil {
				return 0, err
			}
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least, nil
}

// A rank that sleeps in a collective allocates nothing either.
func TestNoAllocationPerSleep(t *testing.T) {
	if need.RaceDetector {
		t.Skip("the race detector allocates")
	}
	const calls = 1000
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, func(_ context.Context, c *mpi.Comm) error {
		ctx := context.Background()
		a := stateOf(c).arena.Load()
		a.spins, a.yields = 0, 0
		n, err := leastMallocs(calls, func() error { return Barrier(ctx, c) })
		if err == nil && c.Rank() == 0 && n > calls/4 {
			err = fmt.Errorf("%d mallocs in %d calls", n, calls)
		}
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func BenchmarkAllreduce(b *testing.B) {
	for _, bytes := range []int{8, 4 << 10, 64 << 10, 1 << 20} {
		for _, size := range []int{2, 4} {
			b.Run(fmt.Sprintf("%dB/%dranks", bytes, size), func(b *testing.B) {
				b.SetBytes(int64(bytes))
				together(b, size, func(ctx context.Context, c *mpi.Comm) error {
					v := make([]float32, bytes/4)
					if err := Allreduce(ctx, c, v, v, Sum); err != nil {
						return err
					}
					if c.Rank() == 0 {
						b.ResetTimer()
					}
					for range b.N {
						if err := Allreduce(ctx, c, v, v, Sum); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// BenchmarkPlan is what the first call of a shape costs besides its messages.
func BenchmarkPlan(b *testing.B) {
	for _, size := range []int{4, 100, 4096} {
		b.Run(fmt.Sprintf("%dranks", size), func(b *testing.B) {
			for b.Loop() {
				p := &plan.Problem{Kind: plan.Allreduce, Rank: size / 3, Size: size, Count: 1 << 20, ElemBytes: 4}
				best := plan.Rank(p, defaultModel)[0]
				best.Build(p)
			}
		})
	}
}
