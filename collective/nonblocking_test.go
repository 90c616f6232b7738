package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// pending is a nonblocking collective of the soak with the check of its result.
type pending struct {
	request Request
	check   func() error
}

// Random overlapping nonblocking collectives on several communicators, waited
// for in an order of every rank's own.
func TestSoakOfOverlappingCollectives(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	length := 3 * time.Second
	if testing.Short() {
		length = 500 * time.Millisecond
	}
	const size = 5
	together(t, size, func(ctx context.Context, c *mpi.Comm) error {
		dup, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		half, err := c.Split(ctx, c.Rank()%2, 0)
		if err != nil {
			return err
		}
		// What is started follows from the seed, alike on all ranks; the order
		// of waiting does not.
		common, own := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, uint64(c.Rank())+1))
		for end := time.Now().Add(length); ; {
			var under []pending
			for range 1 + common.IntN(8) {
				on := []*mpi.Comm{c, dup, half}[common.IntN(3)]
				under = append(under, startSome(on, common.Uint32()))
			}
			own.Shuffle(len(under), func(i, j int) { under[i], under[j] = under[j], under[i] })
			for _, p := range under {
				if own.IntN(3) == 0 {
					for done := false; !done; {
						if done, err = p.request.Test(); err != nil {
							return err
						}
						runtime.Gosched()
					}
				} else if err := p.request.Wait(ctx); err != nil {
					return err
				}
				if err := p.check(); err != nil {
					return err
				}
			}
			stop := []int32{0}
			if time.Now().After(end) {
				stop[0] = 1
			}
			if err := Allreduce(ctx, c, stop, stop, Max); err != nil || stop[0] == 1 {
				return err
			}
		}
	})
}

// startSome starts the collective that what says.
func startSome(c *mpi.Comm, what uint32) pending {
	size, me := c.Size(), c.Rank()
	n := []int{1, 100, 3000, 70_000}[what>>8%4]
	root := int(what >> 16 % uint32(size))
	seed := int(what >> 20 % 1000)
	send, recv := operand[int64](seed, me, n), make([]int64, n)
	sum := func() error { return equal("sum", recv, oracle(seed, 0, size-1, n, sumOf[int64])) }
	switch what % 6 {
	case 0:
		return pending{Iallreduce(c, send, recv, Sum), sum}
	case 1:
		if me == root {
			copy(recv, operand[int64](seed, root, n))
		}
		return pending{Ibcast(c, recv, root), func() error { return equal("bcast", recv, operand[int64](seed, root, n)) }}
	case 2:
		return pending{Ibarrier(c), func() error { return nil }}
	case 3:
		return pending{Ireduce(c, send, recv, Sum, root), func() error {
			if me != root {
				return nil
			}
			return sum()
		}}
	case 4:
		all := make([]int64, n*size)
		return pending{Iallgather(c, send, all), func() error {
			for r := range size {
				if err := equal("allgather", all[r*n:(r+1)*n], operand[int64](seed, r, n)); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	return pending{Iscan(c, send, recv, Sum), func() error { return equal("scan", recv, oracle(seed, 0, me, n, sumOf[int64])) }}
}

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
	started := func(floating bool) { w.add(&execution{state: s, entry: &entry{}, floating: floating}) }
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

// One that has ended and has not been waited for waits for no rank any more.
func TestFinishedWaitsForNobody(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		r := Ibcast(c, []int32{1}, 0)
		for ended := false; !ended; runtime.Gosched() { // as the look-out does
			r.x.turn.Lock()
			ended = r.x.advance(ctx, false)
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
		"bcast": func(ctx context.Context, c *mpi.Comm, v, w []float32) error { return Bcast(ctx, c, v[:100], 1) },
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
				var before, after runtime.MemStats
				for i := range 2 * calls {
					if i == calls {
						runtime.ReadMemStats(&before)
					}
					if err := op(ctx, c, v, w); err != nil {
						return err
					}
				}
				runtime.ReadMemStats(&after)
				if n := after.Mallocs - before.Mallocs; c.Rank() == 0 && n > calls/4 {
					return fmt.Errorf("%d mallocs in %d calls", n, calls)
				}
				return nil
			})
		})
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
