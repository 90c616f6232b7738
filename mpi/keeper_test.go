package mpi

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The keeper that has woken a caller waits for that to lead: it does not look for messages meanwhile, for which it would
// need the processor that the caller needs.
func TestKeeperWaitsForTheCallerItWakes(t *testing.T) {
	p := newPlay(0, []string{"2"})
	t.Cleanup(p.e.set.close)
	polls := 0
	p.s.poll = func(transport.Sink) int { polls++; return 0 }
	w := &waiter{c: make(chan struct{}, 1)}
	p.e.parked = []*waiter{w}
	p.e.startKeeper()
	<-w.c
	seen := func() int {
		p.e.mu.Lock()
		defer p.e.mu.Unlock()
		return polls
	}
	before := seen()
	over := time.NewTimer(20 * time.Millisecond) // in which nothing is to happen
	<-over.C
	if after := seen(); after != before {
		t.Errorf("the keeper has looked %d times since it woke the caller", after-before)
	}
	p.e.mu.Lock()
	p.e.parked, p.e.closed = nil, true
	p.e.handOver()
	p.e.mu.Unlock()
	p.e.keeper.done.Wait()
}

// The keeper looks for messages while the program makes calls that do not, such as an atomic read of its own part, or
// that another package counts.
func TestKeeperLooksWhereCallsDoNot(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(t *testing.T, p *play) func()
	}{
		{"of this package", func(t *testing.T, p *play) func() {
			w := p.window()
			w.direct[0] = w.part
			return func() {
				if _, err := w.FetchAndOp(t.Context(), 0, 0, 0, AccNone); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"of another", func(t *testing.T, p *play) func() {
			var calls atomic.Uint64
			calls.Store(7)
			end := p.c.CountsCalls(&calls)
			t.Cleanup(func() {
				before := p.e.activity()
				if end(); p.e.activity() != before || len(p.e.beside) != 0 {
					t.Errorf("a counter that is taken back changes what was counted: %d before, %d after", before, p.e.activity())
				}
			})
			return func() { calls.Add(1) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(0, []string{"2"})
				t.Cleanup(p.e.set.close)
				polls := 0
				p.s.poll = func(transport.Sink) int { polls++; return 0 }
				call := c.call(t, p)
				call()
				p.e.startKeeper()
				again := time.NewTicker(keeperTick / 2)
				defer again.Stop()
				for range 10 {
					<-again.C
					call()
				}
				p.e.mu.Lock()
				if polls < 3 {
					t.Errorf("the keeper has looked %d times in %v, in which the program made calls that look for nothing", polls, 5*keeperTick)
				}
				p.e.closed = true
				p.e.mu.Unlock()
				p.e.keeper.done.Wait()
			})
		})
	}
}
