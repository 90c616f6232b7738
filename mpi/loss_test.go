package mpi

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestDoneCountsOperations: the keeper looks at how many operations somebody watches, not at how often.
func TestDoneCountsOperations(t *testing.T) {
	p := newPlay(0, []string{"2"})
	r := Irecv(p.c, make([]byte, 10), 1, 0)
	first, second := r.Done(), r.Done()
	p.e.lock()
	watched := p.e.watched
	p.e.Message(1, &transport.Header{Kind: kindEager, Bytes: 10}, make([]byte, 10))
	left := p.e.watched
	p.e.unlock()
	<-first
	<-second
	if watched != 1 || left != 0 {
		t.Errorf("%d operations watched and %d when it had finished, want 1 and 0", watched, left)
	}
}
