package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestFreeForgetsShrinks: what is kept of the agreements on a communicator goes with it.
func TestFreeForgetsShrinks(t *testing.T) {
	p := newPlay(0, []string{"2"})
	c := p.child(t)
	p.e.mu.Lock()
	kept := p.e.shrinkState(shrinkID{comm: p.c, n: 1}, 0)
	p.e.shrinkState(shrinkID{comm: c, n: 1}, 0)
	p.e.shrinkState(shrinkID{comm: c, n: 2}, 0)
	p.e.mu.Unlock()
	c.Free()
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if len(p.e.shrinks) != 1 || p.e.shrinks[shrinkID{comm: p.c, n: 1}] != kept {
		t.Errorf("%d agreements are kept, want that of the world only", len(p.e.shrinks))
	}
}

// TestShrinkGivenUpCanBeRepeated: a rank that has given up a Shrink comes to the same agreement by the next, and so to the
// communicator of one that has called it only once.
func TestShrinkGivenUpCanBeRepeated(t *testing.T) {
	worlds, err := Local(2, LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	over, end := context.WithCancel(ctx)
	end()
	if _, err := worlds[1].Comm().Shrink(over); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want the context's error", err)
	}
	shrunk := make([]*Comm, 2)
	var all sync.WaitGroup
	for r, w := range worlds {
		all.Go(func() {
			var err error
			if shrunk[r], err = w.Comm().Shrink(ctx); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	all.Wait()
	if !t.Failed() && shrunk[0].Name() != shrunk[1].Name() {
		t.Errorf("names %s and %s", shrunk[0].Name(), shrunk[1].Name())
	}
	if !t.Failed() && shrunk[0].context != shrunk[1].context {
		t.Errorf("contexts %#x and %#x", shrunk[0].context, shrunk[1].context)
	}
	for _, w := range worlds {
		all.Go(func() {
			if err := w.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestShrinkAgrees plays one survivor of four, world rank 2 unless it says otherwise, whose
// coordinators die in the middle of their work.
func TestShrinkAgrees(t *testing.T) {
	type step struct {
		does string // what happens
		rank int    // to or from whom
		lost []int  // what is said with it
		says []string
	}
	for _, k := range []struct {
		name  string
		me    int
		steps []step
		lost  []int // agreed on in the end; nil: nothing is
	}{
		{"the coordinator asks and decides", 2, []step{
			{"wait", 0, nil, nil},
			{"ask", 0, nil, []string{"-> 0 shrink 1, 0 lost"}},
			{"decide", 0, []int{3}, nil},
		}, []int{3}},
		{"this rank is the coordinator", 0, []step{
			{"lose", 3, nil, nil},
			{"wait", 0, nil, []string{"-> 1 shrink 0, 0 lost", "-> 2 shrink 0, 0 lost"}},
			{"answer", 1, nil, nil},
			{"answer", 2, []int{3}, []string{"-> 1 shrink 2, 1 lost", "-> 2 shrink 2, 1 lost"}},
		}, []int{3}},
		{"the coordinator has told only the next, which has gone on", 2, []step{
			{"wait", 0, nil, nil},
			{"ask", 0, nil, []string{"-> 0 shrink 1, 0 lost"}},
			{"lose", 0, nil, []string{"-> 1 shrink 3, 0 lost"}},
			{"decide", 1, []int{3}, nil},
		}, []int{3}},
		{"another has heard nothing, and this one hears later", 1, []step{
			{"query", 2, nil, nil},
			{"decide", 0, []int{3}, []string{"-> 2 shrink 2, 1 lost"}},
		}, []int{3}},
		{"another has heard nothing, and this one has", 1, []step{
			{"decide", 0, []int{3}, nil},
			{"query", 2, nil, []string{"-> 2 shrink 2, 1 lost"}},
		}, []int{3}},
		{"a late decision of the dead, after the next has been answered", 2, []step{
			{"ask", 1, nil, []string{"-> 1 shrink 1, 0 lost"}},
			{"decide", 0, []int{3}, nil},
			{"decide", 1, []int{0, 3}, nil},
		}, []int{0, 3}},
		{"a coordinator that others have given up waits for theirs", 0, []step{
			{"ask", 1, nil, []string{"-> 1 shrink 1, 0 lost"}},
			{"wait", 0, nil, []string{"-> 1 shrink 3, 0 lost"}},
			{"decide", 1, []int{0}, nil},
		}, []int{0}},
		{"the next has been answered and dies; one below lives after all", 3, []step{
			{"lose", 0, nil, nil},
			{"ask", 2, nil, []string{"-> 2 shrink 1, 1 lost"}},
			{"lose", 2, nil, nil},
			{"wait", 0, nil, []string{"-> 1 shrink 3, 0 lost"}},
			{"decide", 1, []int{0, 2}, nil},
		}, []int{0, 2}},
		{"one below decides while the next, which dies, is waited for", 3, []step{
			{"lose", 0, nil, nil},
			{"wait", 0, nil, []string{"-> 1 shrink 3, 0 lost"}},
			{"ask", 2, nil, []string{"-> 2 shrink 1, 1 lost", "-> 2 shrink 3, 0 lost"}},
			{"decide", 1, []int{0}, nil},
			{"lose", 2, nil, []string{"-> 1 shrink 3, 0 lost"}},
			{"decide", 1, []int{0, 2}, nil},
		}, []int{0, 2}},
		{"the first of all lives after all", 3, []step{
			{"ask", 2, nil, []string{"-> 2 shrink 1, 0 lost"}},
			{"lose", 2, nil, nil},
			{"decide", 0, []int{2}, nil},
			{"wait", 0, nil, []string{"-> 0 shrink 3, 0 lost"}},
			{"decide", 0, []int{2}, nil},
		}, []int{2}},
		{"nobody is left to ask", 2, []step{
			{"wait", 0, nil, nil},
			{"lose", 0, nil, []string{"-> 1 shrink 3, 0 lost"}},
		}, nil},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newPlay(k.me, []string{"4"})
			e := p.e
			e.mu.Lock()
			defer e.mu.Unlock()
			id := shrinkID{comm: p.c, n: 1}
			a := &agreement{e: e, id: id, s: e.shrinkState(id, e.rank)}
			waits := false
			for i, s := range k.steps {
				p.s.said = nil
				switch s.does {
				case "wait":
					waits = true
				case "lose":
					e.lose(s.rank, "it was killed")
					p.s.said = nil
				default:
					what := map[string]uint64{"ask": shrinkAsk, "answer": shrinkAnswer, "decide": shrinkDecide, "query": shrinkQuery}[s.does]
					var payload []byte
					for _, r := range s.lost {
						payload = binary.LittleEndian.AppendUint32(payload, uint32(r))
					}
					e.Message(s.rank, &transport.Header{Kind: kindShrink, Context: p.c.context, Tag: 1, Aux: what, Bytes: uint64(len(payload))}, payload)
				}
				over := waits && a.met()
				if !slices.Equal(p.s.said, s.says) {
					t.Fatalf("step %d, %s: it said %q, want %q", i, s.does, p.s.said, s.says)
				}
				if last := i == len(k.steps)-1; over && !last {
					t.Fatalf("step %d, %s: it has been decided", i, s.does)
				}
			}
			if a.s.decided != (k.lost != nil) || !slices.Equal(a.s.lost, k.lost) {
				t.Errorf("decided %v: %v, want %v", a.s.decided, a.s.lost, k.lost)
			}
		})
	}
}

// TestLossesThatChange: what is checked of the losses that a peer names is what is kept, although they lie where it can write all the time.
func TestLossesThatChange(t *testing.T) {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	word := (*uint32)(unsafe.Pointer(&page[0]))
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for !stop.Load() {
			atomic.StoreUint32(word, 2)
			atomic.StoreUint32(word, 1<<30)
		}
	}()
	defer func() {
		stop.Store(true)
		<-stopped
	}()
	kept := 0
	for try := range 3000 {
		p := newPlay(0, []string{"3"})
		p.e.mu.Lock()
		p.e.Message(1, &transport.Header{Kind: kindShrink, Context: p.c.context, Tag: 1, Aux: shrinkAnswer, Bytes: 4}, page[:4])
		for _, s := range p.e.shrinks {
			for _, r := range s.answers[1] {
				if kept++; r >= 3 {
					t.Errorf("try %d: rank %d of 3 is believed to be lost", try, r)
				}
			}
		}
		p.e.mu.Unlock()
		p.e.set.close()
	}
	t.Logf("%d of 3000 answers kept", kept)
}
