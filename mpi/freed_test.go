package mpi

import (
	"errors"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// child makes a communicator of the same ranks as the world's, with the id that comes after it.
func (p *play) child(t *testing.T) *Comm {
	t.Helper()
	c, err := p.c.derive(t.Context(), p.c.childName("dup"), p.c.group, p.c.rank, contextStep)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// arrive has a message of rank 1 arrive.
func (p *play) arrive(h transport.Header, payload []byte) {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	h.Bytes = uint64(len(payload))
	p.e.Message(1, &h, payload)
}

// TestFreedCommunicatorKeepsNothing: what comes for it later costs nothing here, and its sender gets its credit or its
// buffer back.
func TestFreedCommunicatorKeepsNothing(t *testing.T) {
	p := newPlay(0, []string{"2"})
	t.Cleanup(p.e.set.close)
	c := p.child(t)
	p.arrive(transport.Header{Kind: kindEager, Context: c.context, Tag: 1}, make([]byte, 99))
	p.arrive(transport.Header{Kind: kindRTS, Context: c.shadow.context, Token: 500}, nil)
	self := Isend(c, make([]byte, selfEagerBytes+1), 0, 0)
	p.heard(t, "messages before it is freed")
	c.Free()
	p.heard(t, "the communicator is freed", "-> 1 retracted 500 freed")
	if _, err := self.Wait(t.Context()); !errors.Is(err, ErrClosed) || errors.Is(err, ErrRevoked) {
		t.Errorf("a message of this rank to itself ends with %v, want %v", err, errFreed)
	}
	p.arrive(transport.Header{Kind: kindRTS, Context: c.context, Token: 501}, nil)
	p.heard(t, "an announcement after it", "-> 1 retracted 501 freed")
	p.arrive(transport.Header{Kind: kindEager, Context: c.context, Tag: 1}, make([]byte, 99))
	p.arrive(transport.Header{Kind: kindEager, Context: c.shadow.context, Tag: 1}, make([]byte, 99))
	p.heard(t, "messages after it", "-> 1 credit 585")
	p.arrive(transport.Header{Kind: kindRevoke, Context: c.context}, nil)
	if n := p.e.match.unexpected; n != 0 {
		t.Errorf("%d messages are kept", n)
	}
	if n := len(p.e.revokedEarly); n != 0 {
		t.Errorf("%d revocations are kept", n)
	}
	// Another communicator of that id has messages of its own.
	c = p.child(t)
	p.arrive(transport.Header{Kind: kindEager, Context: c.context, Tag: 1}, make([]byte, 10))
	if _, err := Recv(t.Context(), c, make([]byte, 10), 1, 1); err != nil {
		t.Error(err)
	}
}

// TestForgoneCommunicatorKeepsNothing: nor does what comes for one that another member has made, and this one has failed to.
func TestForgoneCommunicatorKeepsNothing(t *testing.T) {
	p := newPlay(0, []string{"2"})
	t.Cleanup(p.e.set.close)
	const number, context = 1, 8
	dup := uint64(collectiveDup)
	p.arrive(transport.Header{Kind: kindEager, Context: context, Tag: 1}, make([]byte, 99))
	p.says([]uint64{number, dup, 0, context}, []uint64{number, dup, roundGivenUp, 1})
	if _, err := p.c.Dup(t.Context()); !errors.Is(err, ErrCancelled) {
		t.Fatalf("rank 1 has given up, and the error is %v", err)
	}
	p.arrive(transport.Header{Kind: kindRTS, Context: context + 1, Token: 501}, nil)
	p.arrive(transport.Header{Kind: kindEager, Context: context, Tag: 1}, make([]byte, 99))
	if n := p.e.match.unexpected; n != 0 {
		t.Errorf("%d messages are kept", n)
	}
	if !slices.Contains(p.s.said, "-> 1 retracted 501 freed") {
		t.Errorf("an announcement is not refused: %q", p.s.said)
	}
	// The next communicator is no worse for it.
	p.arrive(transport.Header{Kind: kindEager, Context: context + contextStep, Tag: 1}, make([]byte, 10))
	p.says([]uint64{number + 1, dup, 0, context}, []uint64{number + 1, dup, 1, 0})
	c, err := p.c.Dup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Recv(t.Context(), c, make([]byte, 10), 1, 1); err != nil {
		t.Error(err)
	}
}

// TestFreeKeepsDecisions: a survivor that has not heard what a Shrink decided is told by one that has gone on and
// freed the communicator.
func TestFreeKeepsDecisions(t *testing.T) {
	p := newPlay(1, []string{"3"})
	t.Cleanup(p.e.set.close)
	c := p.child(t)
	arrive := func(from int, what uint64, lost ...uint32) {
		p.e.mu.Lock()
		defer p.e.mu.Unlock()
		b := ranksLost(lost...)
		p.e.Message(from, &transport.Header{Kind: kindShrink, Context: c.context, Tag: 1, Aux: what, Bytes: uint64(len(b))}, b)
	}
	arrive(0, shrinkDecide, 0)
	c.Free()
	arrive(2, shrinkQuery)
	p.heard(t, "a question after the decision", "-> 2 shrink 2, 1 lost")
	arrive(2, shrinkAsk)
	p.heard(t, "a coordinator asks after the decision", "-> 2 shrink 2, 1 lost")
	if len(p.e.early) > 0 || len(p.e.shrinks) > 0 {
		t.Errorf("%d questions and %d agreements are kept", len(p.e.early), len(p.e.shrinks))
	}
}

// TestFreedCommunicatorsAreForgotten: there is a bound on how many are remembered, and the oldest go.
func TestFreedCommunicatorsAreForgotten(t *testing.T) {
	var f freedComms
	const more = 100
	for i := range uint32(freedKept + more) {
		f.add(contextStep*i, []decision{{context: contextStep * i, n: 1, lost: []int{int(i)}}})
	}
	if len(f.decided) != freedKept || len(f.order) != freedKept {
		t.Errorf("%d communicators are remembered in %d places, want %d", len(f.decided), len(f.order), freedKept)
	}
	for i, want := range map[uint32]bool{more - 1: false, more: true, freedKept + more - 1: true} {
		lost, ok := f.decision(contextStep*i, 1)
		if ok != want || ok && lost[0] != int(i) || f.has(contextStep*i+1) != want {
			t.Errorf("communicator %d of %d: remembered %v, want %v; decided %v", i, freedKept+more, ok, want, lost)
		}
	}
}
