package mpi

import (
	"errors"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestRevokedBeforeAttached: who has heard of it before it has the communicator passes it on then.
func TestRevokedBeforeAttached(t *testing.T) {
	p := newPlay(0, []string{"3"})
	revoke := func() {
		p.e.lock()
		defer p.e.unlock()
		p.e.Message(1, &transport.Header{Kind: kindRevoke, Context: contextStep}, nil)
	}
	revoke()
	p.heard(t, "a revocation that comes early")
	c, err := p.c.derive(t.Context(), "dup", p.c.group, 0, contextStep)
	if err != nil {
		t.Fatal(err)
	}
	p.heard(t, "the communicator is there", "-> 1 revoke", "-> 2 revoke")
	revoke()
	p.heard(t, "the revocation again")
	if err := Send(t.Context(), c, []byte{1}, 1, 0); !errors.Is(err, ErrRevoked) {
		t.Errorf("a send: %v", err)
	}
}

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
