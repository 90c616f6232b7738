package collective

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

func TestPace(t *testing.T) {
	const near, far = 3 * time.Microsecond, 20 * time.Microsecond // for 64 KiB
	p := pace{kernel: 0.1}
	meet := func(steps ...time.Duration) {
		for _, s := range steps {
			p.note(s, 64<<10)
		}
		p.judge()
	}
	for i, c := range []struct {
		steps []time.Duration
		vote  uint64
	}{
		{[]time.Duration{far}, 0},
		{[]time.Duration{far, far}, 0},
		{nil, 0}, // nothing to copy says nothing
		{[]time.Duration{far}, 1},
		{[]time.Duration{far}, 1},
		{[]time.Duration{far, near, far}, 0}, // the quickest step counts
		{[]time.Duration{far}, 0},
		{[]time.Duration{far}, 0},
		{[]time.Duration{far}, 1},
	} {
		meet(c.steps...)
		if p.vote() != c.vote {
			t.Errorf("after meeting %d (%v): vote %d, want %d", i, c.steps, p.vote(), c.vote)
		}
	}
	for range 2 {
		p.far = false
		if p.direct() {
			t.Error("direct although the ranks are near")
		}
		p.far = true
		for _, want := range []int{fewMeetings, 2 * fewMeetings, 4 * fewMeetings, farMeetings, farMeetings} {
			n := 0
			for p.direct() {
				n++
			}
			if n != want {
				t.Errorf("%d are direct in a row, want %d", n, want)
			}
		}
	}
	p.note(time.Second, paceBytes-1)
	if p.quickest != 0 {
		t.Error("a short copy counts")
	}
}

// Ranks that find each other far read each other's buffers, all from the same collective
// on, look again now and then, and go back when they are near. What several would read of one rank goes on through pieces.
func TestArenaFar(t *testing.T) {
	const (
		most   = 4 * farMeetings // long enough to look again
		direct = 2               // steps
	)
	m := *defaultModel
	m.Host.OneWay, m.Host.Exchange = plan.Linear(1, 1), plan.Linear(1, 1) // no messages
	m.Read = plan.Linear(1, 1)                                            // direct only when far
	rng := []int{5, 30_000, 2000, 60_000}
	for r, err := range inShared(t, MemoryPlan, 3, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Model: &m}); err != nil {
			return err
		}
		a := stateOf(c).arena.Load()
		until := func(far bool, kernel float64) error {
			a.pace.kernel = kernel
			for i := 0; ; i++ {
				n := rng[i%len(rng)]
				recv := make([]int32, n*c.Size())
				before, wasFar, left := a.steps, a.pace.far, a.pace.left
				if err := Allgather(ctx, c, operand[int32](i, c.Rank(), n), recv); err != nil {
					return err
				}
				for r := range c.Size() {
					if err := equal("allgather", recv[n*r:][:n], operand[int32](i, r, n)); err != nil {
						return fmt.Errorf("%d of %d: %w", i, n, err)
					}
				}
				if took := a.steps - before; n == 60_000 && wasFar && a.pace.far && left > 0 && took != direct {
					return fmt.Errorf("allgather of %d among ranks that are far took %d steps, want %d", n, took, direct)
				}
				switch {
				case a.pace.far == far:
					return Barrier(ctx, c)
				case i == most:
					return fmt.Errorf("far is still %v", a.pace.far)
				}
			}
		}
		// One rank is enough, and finds it out by itself.
		kernel := 1e9
		if c.Rank() == 1 {
			kernel = 0
		}
		if err := until(true, kernel); err != nil {
			return err
		}
		for i := range fewMeetings + 1 {
			const rounds, n = 3, 3 * pieceBytes / 4 // int32s
			for _, call := range []struct {
				kind  plan.Kind
				steps uint64
				do    func() error
			}{
				{plan.Reduce, rounds, func() error { return Reduce(ctx, c, operand[int32](i, c.Rank(), n), make([]int32, n), Sum, 0) }},
				{plan.Bcast, rounds, func() error { return Bcast(ctx, c, make([]int32, n), 0) }},
			} {
				before := a.steps
				if err := call.do(); err != nil {
					return err
				}
				if got := a.steps - before; got != call.steps {
					return fmt.Errorf("%v has %d steps, want %d through pieces", call.kind, got, call.steps)
				}
			}
		}
		return until(false, 1e9)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
