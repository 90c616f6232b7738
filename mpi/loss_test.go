package mpi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		p.e.mu.Lock()
		defer p.e.mu.Unlock()
		p.e.Message(1, &transport.Header{Kind: kindRevoke, Context: contextStep}, nil)
	}
	revoke()
	p.heard(t, "a revocation that comes early")
	c := p.child(t)
	p.heard(t, "the communicator is there", "-> 1 revoke", "-> 2 revoke")
	revoke()
	p.heard(t, "the revocation again")
	if err := Send(t.Context(), c, []byte{1}, 1, 0); !errors.Is(err, ErrRevoked) {
		t.Errorf("a send: %v", err)
	}
}

// TestOutboxForgetsGivenUp: sends that are given up before there is room for them do not wait on, and those between
// them leave in their order.
func TestOutboxForgetsGivenUp(t *testing.T) {
	p := newPlay(0, []string{"2"})
	t.Cleanup(p.e.set.close)
	p.s.full = true
	var kept []Request
	var want []string
	const rounds, each = 4, 1000 // two a round are kept, for which there is credit
	for round := range rounds {
		for i := range each {
			r := Isend(p.c, make([]byte, 10), 1, 0)
			if i%(each/2) == round {
				kept = append(kept, Isend(p.c, make([]byte, 5), 1, len(kept)))
				want = append(want, fmt.Sprintf("-> 1 eager tag %d, 5 B", len(want)))
			}
			r.Cancel()
			if _, err := r.Wait(t.Context()); !errors.Is(err, ErrCancelled) {
				t.Fatalf("a send given up ends with %v", err)
			}
		}
		if out := &p.e.peer(1).out; len(out.q)-out.head > 2*len(kept)+overMost+1 {
			t.Fatalf("%d parcels wait for %d sends", len(out.q)-out.head, len(kept))
		}
	}
	p.s.full = false
	if err := WaitAll(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	p.heard(t, "there is room", want...)
	if out := &p.e.peer(1).out; !out.empty() || out.over != 0 || len(p.e.backlog) != 0 {
		t.Errorf("%d parcels are left, %d of them given up", len(out.q)-out.head, out.over)
	}
}

// TestLossHasItsReason: whoever finds that a provider takes nothing more for a peer learns why, as those do that
// wait for it.
func TestLossHasItsReason(t *testing.T) {
	reason := errors.New("no memory for the ring to rank 1: check the job's memory limit")
	rts := transport.Header{Kind: kindRTS, Tag: 3, Token: 500, Bytes: 300}
	type call func(p *play) error
	for name, does := range map[string]call{
		"small send":  func(p *play) error { return Send(t.Context(), p.c, make([]byte, 50), 1, 0) },
		"large send":  func(p *play) error { return Send(t.Context(), p.c, make([]byte, 150), 1, 0) },
		"pulled send": func(p *play) error { return Send(t.Context(), p.c, make([]byte, 5000), 1, 0) },
		"isend": func(p *play) error {
			r := Isend(p.c, make([]byte, 50), 1, 0)
			_, err := r.Wait(t.Context())
			return err
		},
		"cleared send": func(p *play) error {
			p.s.gone = nil
			r := Isend(p.c, make([]byte, 150), 1, 0)
			p.s.gone = reason
			p.e.mu.Lock()
			p.e.Message(1, &transport.Header{Kind: kindCTS, Token: r.o.token(), Aux: 9, Bytes: 150}, nil)
			p.e.mu.Unlock()
			_, err := r.Wait(t.Context())
			return err
		},
		"receive": func(p *play) error {
			p.e.mu.Lock()
			p.e.Message(1, &rts, nil)
			p.e.mu.Unlock()
			_, err := Recv(t.Context(), p.c, make([]byte, 300), 1, 3)
			return err
		},
		"pulled receive": func(p *play) error {
			p.e.mu.Lock()
			p.e.Message(1, &rts, make([]byte, keyBytes))
			p.e.mu.Unlock()
			_, err := Recv(t.Context(), p.c, make([]byte, 300), 1, 3)
			return err
		},
		"flush": func(p *play) error {
			w := p.window()
			return errors.Join(w.Put(t.Context(), 1, 0, []float64{1}), w.Flush(t.Context(), 1))
		},
		"compare": func(p *play) error {
			_, err := p.window().CompareAndSwap(t.Context(), 1, 0, 1, 2)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(0, []string{"2", "pull"})
			t.Cleanup(p.e.set.close)
			p.s.gone = reason
			err := does(p)
			var at *Error
			if !errors.Is(err, ErrPeerLost) || !errors.As(err, &at) || at.Peer != 1 || !strings.Contains(err.Error(), reason.Error()) {
				t.Errorf("it ends with %v, want the loss of rank 1 and %q", err, reason)
			}
			if n := len(p.e.losses); n != 1 {
				t.Errorf("%d losses are known", n)
			}
			if p.e.mu.Lock(); p.e.poll() != 0 || len(p.e.backlog) > 0 || !p.e.peer(1).out.empty() {
				t.Error("something waits for the lost rank")
			}
			p.e.mu.Unlock()
		})
	}
}

// TestGoneAfterGoodbye: who has said goodbye takes a peer that is gone for one that was quicker.
func TestGoneAfterGoodbye(t *testing.T) {
	p := newPlay(0, []string{"2"})
	t.Cleanup(p.e.set.close)
	p.s.gone = errors.New("it has closed the connection")
	p.e.mu.Lock()
	p.e.closing = true
	p.e.mu.Unlock()
	if err := Send(t.Context(), p.c, make([]byte, 50), 1, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("a send ends with %v, want %v", err, ErrClosed)
	}
}

// TestDoneCountsOperations: the keeper looks at how many operations somebody watches, not at how often.
func TestDoneCountsOperations(t *testing.T) {
	p := newPlay(0, []string{"2"})
	r := Irecv(p.c, make([]byte, 10), 1, 0)
	first, second := r.Done(), r.Done()
	p.e.mu.Lock()
	watched := p.e.watched
	p.e.Message(1, &transport.Header{Kind: kindEager, Bytes: 10}, make([]byte, 10))
	left := p.e.watched
	p.e.mu.Unlock()
	<-first
	<-second
	if watched != 1 || left != 0 {
		t.Errorf("%d operations watched and %d when it had finished, want 1 and 0", watched, left)
	}
}
