package mpi

import (
	"testing"
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
		p.e.lock()
		defer p.e.unlock()
		return polls
	}
	before := seen()
	over := time.NewTimer(20 * time.Millisecond) // in which nothing is to happen
	<-over.C
	if after := seen(); after != before {
		t.Errorf("the keeper has looked %d times since it woke the caller", after-before)
	}
	p.e.lock()
	p.e.parked, p.e.closed = nil, true
	p.e.handOver()
	p.e.unlock()
	p.e.keeper.done.Wait()
}
