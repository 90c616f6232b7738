package mpi

import (
	"context"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// window makes a window on rank 0 of two, who reach each other's part by messages.
func (p *play) window() *Window[float64] {
	w := &Window[float64]{c: p.c, e: p.e, id: 7, part: make([]float64, 4), held: &heldMemory{memory: &p.c.world.memory}, combine: combiners[float64](),
		lengths: []int{4, 4}, direct: make([][]float64, 2), posted: make([]posted, 2), holds: make([]int, 2)}
	w.locks.holder = -1
	p.e.addWindow(w.id, w)
	return w
}

// heard compares what the engine has done since the last time.
func (p *play) heard(t *testing.T, when string, want ...string) {
	t.Helper()
	if !slices.Equal(p.s.said, want) {
		t.Errorf("%s: the engine did %q, want %q", when, p.s.said, want)
	}
	p.s.said = nil
}

func TestFlushUntilAnswered(t *testing.T) {
	p := newPlay(0, []string{"2"})
	w := p.window()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Put(t.Context(), 1, 0, []float64{1, 2}); err != nil {
		t.Fatal(err)
	}
	p.heard(t, "a put", "-> 1 put 0")
	for _, flush := range []string{"-> 1 flush 1", "-> 1 flush 2"} {
		if err := w.Flush(ended, 1); !errors.Is(err, context.Canceled) {
			t.Fatalf("a flush without an answer: %v", err)
		}
		p.heard(t, "a flush", flush)
	}
	put := false
	p.s.poll = func(s transport.Sink) int {
		if !put { // by another goroutine, after the question
			put = true
			s.Outside(func() {
				if err := w.Put(t.Context(), 1, 0, []float64{3}); err != nil {
					t.Error(err)
				}
			})
			h := windowHeader{code: windowAnswer, token: 3}.header(w.id)
			h.Kind = kindWindow
			s.Message(1, &h, nil)
			return 1
		}
		return 0
	}
	if err := w.Flush(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p.heard(t, "a flush and a put", "-> 1 flush 3", "-> 1 put 0")
	if err := w.Flush(ended, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("a flush of the second put: %v", err)
	}
	p.heard(t, "a flush of the second put", "-> 1 flush 4")
}

// TestLockGivenUp: only a wish that has left is given up, by its token.
func TestLockGivenUp(t *testing.T) {
	p := newPlay(0, []string{"2"})
	w := p.window()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, want := range [][]string{{"-> 1 lock 1", "-> 1 cancel 1"}, {"-> 1 lock 2", "-> 1 cancel 2"}} {
		if err := w.Lock(ended, 1, LockExclusive); !errors.Is(err, context.Canceled) {
			t.Fatalf("a lock that is not granted: %v", err)
		}
		p.heard(t, "a wish", want...)
	}
	p.s.full = true
	Isend(p.c, make([]byte, 10), 1, 0)
	if err := w.Lock(ended, 1, LockExclusive); !errors.Is(err, context.Canceled) {
		t.Fatalf("a lock that cannot be asked for: %v", err)
	}
	p.s.full = false
	p.e.mu.Lock()
	p.e.poll()
	p.e.mu.Unlock()
	p.heard(t, "a wish without room", "-> 1 eager tag 0, 10 B")
}

// TestElementsByAtomicInstructions: only those that always lie where such an instruction can be used.
func TestElementsByAtomicInstructions(t *testing.T) {
	for name, k := range map[string]struct{ got, want bool }{
		"int16":      {lockFree[int16](), false},
		"int32":      {lockFree[int32](), true},
		"float32":    {lockFree[float32](), true},
		"int64":      {lockFree[int64](), unsafe.Alignof(int64(0)) == 8},
		"float64":    {lockFree[float64](), unsafe.Alignof(float64(0)) == 8},
		"complex64":  {lockFree[complex64](), false},
		"complex128": {lockFree[complex128](), false},
	} {
		if k.got != k.want {
			t.Errorf("%s: %v, want %v", name, k.got, k.want)
		}
	}
}

// TestWindowLossNamesTheRank: an operation on a lost rank's part names it by its rank in the communicator, not by that in the world.
func TestWindowLossNamesTheRank(t *testing.T) {
	p := newPlay(0, []string{"2"})
	p.c = newComm(p.c.world, p.e, "turned", 1, []int32{1, 0}, contextStep)
	w := p.window()
	p.e.mu.Lock()
	p.e.lose(1, "it was killed")
	p.e.mu.Unlock()
	for what, call := range map[string]func() error{
		"checked before": func() error { return w.Put(t.Context(), 0, 0, []float64{1}) },
		"lost meanwhile": func() error { return w.scatter(t.Context(), "put", 0, windowPut, 0, 0, []float64{1}) },
	} {
		const want = "mpi: rank 1 put with rank 0 on turned: peer lost: it was killed"
		if err := call(); !errors.Is(err, ErrPeerLost) || err.Error() != want {
			t.Errorf("%s: %q, want %q", what, err, want)
		}
	}
}
