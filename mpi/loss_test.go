package mpi

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestWaitAllGivesUpTogether: when the context ends, all peers are asked before any is waited for. These
// agree once both have been asked.
func TestWaitAllGivesUpTogether(t *testing.T) {
	p := newPlay(0, []string{"3"})
	rs := []Request{Isend(p.c, make([]byte, 500), 1, 0), {}, Isend(p.c, make([]byte, 500), 2, 0), Irecv(p.c, make([]byte, 10), 1, 0)}
	p.requests["a"], p.requests["b"], p.order = rs[0], rs[2], []string{"a", "b"}
	a, b := rs[0].o.token(), rs[2].o.token()
	p.s.poll = func(s transport.Sink) int {
		if !slices.Contains(p.s.said, "-> 1 retract a") || !slices.Contains(p.s.said, "-> 2 retract b") {
			return 0
		}
		p.s.said = nil
		s.Message(1, &transport.Header{Kind: kindRetracted, Token: a}, nil)
		s.Message(2, &transport.Header{Kind: kindRetracted, Token: b}, nil)
		return 2
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WaitAll(ended, rs); !errors.Is(err, context.Canceled) || errors.Is(err, ErrInFlight) {
		t.Errorf("all are taken back, but the error is %v", err)
	}
	if slices.ContainsFunc(rs, func(r Request) bool { return !r.Null() }) {
		t.Error("not all requests are null")
	}
	if n := len(p.e.ops.all) - len(p.e.ops.free); n != 1 {
		t.Errorf("%d operations are in use, want that of the blocking receive only", n)
	}
}

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
