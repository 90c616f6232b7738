package collective

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
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

// A nonblocking collective that has ended lets the look-out sleep, also before it is waited for; the next one wakes it.
func TestEndedLetsTheLookOutSleep(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		token := []int32{0}
		if c.Rank() == 1 {
			if _, err := mpi.Recv(ctx, c, token, 0, 1); err != nil {
				return err
			}
			return errors.Join(Barrier(ctx, c), Barrier(ctx, c))
		}
		s := stateOf(c)
		w := &s.watch
		w.running, w.wake = true, make(chan struct{}, 1) // nobody looks out but this test
		var wrong []error
		want := func(ok bool, otherwise string) {
			if !ok {
				wrong = append(wrong, errors.New(otherwise))
			}
		}
		first := Ibarrier(c)
		want(s.push() && !w.dozing, "it sleeps while a collective has yet to end")
		first.x.turn.Lock()
		want(s.push() && !w.dozing, "it sleeps while somebody else is at a collective that has yet to end")
		first.x.turn.Unlock()
		if err := mpi.Send(ctx, c, token, 1, 1); err != nil {
			return err
		}
		lookUntil(ctx, func() bool {
			s.push()
			return first.x.ended
		})
		want(!s.push() && w.dozing, "it looks every millisecond after a collective that has ended")
		second := Ibarrier(c)
		want(len(w.wake) == 1 && !w.dozing, "the next collective does not wake it")
		return errors.Join(append(wrong, WaitAll(ctx, []Request{first, second}))...)
	})
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
		return says(WaitAll(ctx, requests), "bcast of 1 int32, root 0", "bcast of 1 int32, root 1")
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
		answer := s.describe(r.seq)
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
		called, not := s.describe(1), s.describe(2)
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

// A spent request does not wait for a later call that is done in its place.
func TestSpentRequestWaitsForNobody(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		old := Ibarrier(c)
		if err := old.Wait(ctx); err != nil {
			return err
		}
		later := Ibarrier(c)
		if later.x != old.x {
			return errors.New("the later call is done in another place, which proves nothing")
		}
		later.x.turn.Lock() // as whoever waits for it
		done, err := old.Test()
		waited := make(chan error, 1)
		go func() { waited <- old.Wait(ctx) }()
		var wrong error
		select {
		case err := <-waited:
			wrong = within(err, mpi.ErrRequest)
		case <-time.After(10 * time.Second):
			wrong = errors.New("Wait waits for the later call")
		}
		later.x.turn.Unlock()
		if !done || !errors.Is(err, mpi.ErrRequest) {
			wrong = errors.Join(wrong, fmt.Errorf("Test says %v, %v", done, err))
		}
		return errors.Join(wrong, later.Wait(ctx))
	})
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
