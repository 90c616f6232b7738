package collective

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"unsafe"
	"weak"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Plans of ever other shapes are bounded by number and by memory, and the last is among them.
func TestPlansAreBounded(t *testing.T) {
	for _, steps := range []int{1, plansBytes / 1024, plansBytes / 16} {
		s, p := &state{entries: make(map[key]*entry)}, &plan.Plan{Steps: make([]plan.Step, steps)}
		for i := range 2 * maxEntries {
			e := &entry{key: key{count: i}, plan: p}
			e.counts[1] = []int{1, 2}
			s.keep(e)
			s.keep(e) // in its own place
			sum := 0
			for _, o := range s.entries {
				sum += o.bytes()
			}
			if sum > max(plansBytes, e.bytes()) || len(s.entries) > maxEntries || s.entries[e.key] != e {
				t.Fatalf("after %d plans of %d bytes %d are kept, of %d bytes", i+1, e.bytes(), len(s.entries), sum)
			}
		}
		if each := int(unsafe.Sizeof(plan.Step{})); len(s.entries) < min(maxEntries, plansBytes/(each*steps+100)) {
			t.Errorf("of plans of %d steps %d are kept", steps, len(s.entries))
		}
	}
}

// Plans that are kept no more are gone, although the counts of the alltoallvs that they were of are still known.
func TestForgottenPlansAreFreed(t *testing.T) {
	s := &state{entries: make(map[key]*entry)}
	s.watch.calls = make([]past, history)
	s.watch.running = true // nobody looks out
	const seq = 1
	forgotten := func() weak.Pointer[plan.Plan] {
		e := &entry{plan: &plan.Plan{Steps: make([]plan.Step, 1)}}
		e.counts[1], e.counts[2] = []int{1, 2}, []int{3, 4}
		x := &execution{state: s, entry: e, seq: seq}
		s.keep(e)
		s.watch.add(x)
		s.watch.remove(x)
		return weak.Make(e.plan)
	}()
	s.keep(&entry{key: key{count: 1}, plan: &plan.Plan{Steps: make([]plan.Step, plansBytes/16)}}) // leaves room for no other
	runtime.GC()
	if forgotten.Value() != nil {
		t.Error("a plan that is kept no more is still there")
	}
	if _, counts := s.watch.recall(seq); counts.with(1) != (exchange{2, 4}) {
		t.Errorf("the counts of its call are %+v", counts)
	}
	runtime.KeepAlive(s)
}

// A plan that is kept no more holds no idle executions, also as the last of its kind.
func TestForgottenPlansHoldNothing(t *testing.T) {
	s := &state{entries: make(map[key]*entry)}
	last := &entry{plan: &plan.Plan{}, idle: []*execution{{}}}
	s.keep(last)
	s.last[plan.Barrier] = last
	s.keep(&entry{key: key{count: 1}, plan: &plan.Plan{Steps: make([]plan.Step, plansBytes/16)}}) // leaves room for no other
	if len(s.entries) != 1 || last.idle != nil {
		t.Errorf("of %d plans are kept: %d idle executions of the one before", len(s.entries), len(last.idle))
	}
}

// Vectors of ever other lengths do not each keep memory for the next call of theirs.
func TestIdleMemoryIsBounded(t *testing.T) {
	const size, shapes, longest = 2, 24, 2 << 20
	together(t, size, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Force: map[plan.Kind]string{plan.Allreduce: "doubling"}}); err != nil {
			return err
		}
		held := func() int { return idleHeld(c) }
		vector := make([]float32, longest)
		most := 0
		for i := range shapes {
			if err := Allreduce(ctx, c, vector[i:], vector[i:], Sum); err != nil {
				return err
			}
			if most = max(most, held()); i == 0 && most < idleBytes/shapes {
				return fmt.Errorf("one shape holds %d bytes, which proves nothing", most)
			}
			if n := held(); n > idleBytes || n == 0 {
				return fmt.Errorf("after %d shapes %d bytes are held", i+1, n)
			}
		}
		if most*2 < idleBytes {
			return fmt.Errorf("never more than %d bytes were held", most)
		}
		return nil
	})
}

// Nor do many at a time of shorter ones.
func TestIdleMemoryOfManyIsBounded(t *testing.T) {
	const size, shapes, atOnce = 2, 4, 200
	const length = manyBytes / 4 / 2
	together(t, size, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Force: map[plan.Kind]string{plan.Allreduce: "doubling"}}); err != nil {
			return err
		}
		for i := range shapes {
			requests := make([]Request, atOnce)
			for j := range requests {
				v := make([]float32, length+i)
				requests[j] = Iallreduce(c, v, v, Sum)
			}
			if err := WaitAll(ctx, requests); err != nil {
				return err
			}
			if n := idleHeld(c); n > idleBytes || n < idleBytes/shapes {
				return fmt.Errorf("after %d shapes %d bytes are held", i+1, n)
			}
		}
		return nil
	})
}

// idleHeld is the memory that a communicator keeps for calls to come.
func idleHeld(c *mpi.Comm) (sum int) {
	s := stateOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		for _, x := range e.idle {
			sum += x.heldBytes()
		}
	}
	return sum
}
