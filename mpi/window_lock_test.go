package mpi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// ledger writes down who was granted the lock.
type ledger []string

func (l *ledger) grant(w lockWish) {
	*l = append(*l, fmt.Sprintf("%d%c%s", w.rank, "sx"[w.mode], strings.Repeat("'", int(w.token))))
}

// refuse: in a play nobody leaves.
func (l *ledger) refuse(lockWish) { *l = append(*l, "refused") }

// TestWindowLocks plays wishes, releases, wishes given up and losses against
// the order of grants. "1x" is rank 1 that wants the lock exclusively, "1s"
// shared, "1x'" another wish of its, "-1" a release, "~1" a wish given up, "!1" a loss.
func TestWindowLocks(t *testing.T) {
	tests := []struct{ name, events, grants string }{
		{"first come first served", "1x 2x 3x -1 -2", "1x 2x 3x"},
		{"shared together", "1s 2s 1s 3x -1 -2 -1", "1s 2s 1s 3x"},
		{"nobody passes who waits", "1s 2x 3s -1 -2", "1s 2x 3s"},
		{"a holder is lost", "1x 2x !1", "1x 2x"},
		{"a sharer is lost", "1s 1s 2s 3x !1 -2", "1s 1s 2s 3x"},
		{"one that waits is lost", "1x 2x 3x !2 -1", "1x 3x"},
		{"a wish given up while it waits", "1x 2x 3s ~2 -1", "1x 3s"},
		{"a wish given up when it has been granted", "1x ~1 2x", "1x 2x"},
		{"a wish given up lets others pass", "1s 2x 3s ~2", "1s 3s"},
		{"the first of two wishes given up", "2x 1s 1x' ~1 -2", "2x 1x'"},
		{"the second of two wishes given up", "2x 1s 1x' ~1' -2", "2x 1s"},
		{"the granted one of two wishes given up", "1x 1x' 2x ~1 -1", "1x 1x' 2x"},
		{"the waiting one of two wishes given up", "1x 1x' 2x ~1' -1", "1x 2x"},
		{"a shared lock given up beside another", "1s 1s' 2x ~1' -1", "1s 1s' 2x"},
		{"a release of nothing", "-1 1x -2 2x -1", "1x 2x"},
	}
	for _, test := range tests {
		k := windowLocks{holder: -1}
		var got ledger
		for _, event := range strings.Fields(test.events) {
			rank := int(strings.Trim(event, "-~!sx'")[0] - '0')
			token := uint64(strings.Count(event, "'"))
			switch event[0] {
			case '-':
				k.release(&got, rank)
			case '~':
				k.cancel(&got, rank, token)
			case '!':
				k.forget(rank)
				k.serve(&got)
			default:
				k.ask(&got, lockWish{rank: rank, mode: LockMode(strings.IndexByte("sx", event[1])), token: token})
			}
		}
		if want := strings.Fields(test.grants); !slices.Equal([]string(got), want) {
			t.Errorf("%s: granted %v, want %v", test.name, got, want)
		}
	}
}

// TestLockEndsWithItsWindow: who waits for the lock of a part that leaves the window, or whose communicator is revoked, is told, here
// and elsewhere.
func TestLockEndsWithItsWindow(t *testing.T) {
	for what, test := range map[string]struct {
		end  func(w *Window[int])
		want error
	}{
		"release": {func(w *Window[int]) { w.Release() }, ErrClosed},
		"revoke":  {func(w *Window[int]) { w.c.Revoke() }, ErrRevoked},
	} {
		t.Run(what, func(t *testing.T) { lockEnds(t, test.end, test.want) })
	}
}

func lockEnds(t *testing.T, end func(w *Window[int]), want error) {
	const waiting = 2 // at rank 0, for its own lock and by message
	worlds, err := Local(3, LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rank := func(c *Comm) error {
		w, err := NewWindow(ctx, c, make([]int, 1))
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			if err := w.Lock(ctx, 0, LockExclusive); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		lock := func() error {
			var at *Error
			if err := w.Lock(ctx, 0, LockShared); !errors.Is(err, want) || !errors.As(err, &at) || at.Peer != 0 {
				return fmt.Errorf("wait for a lock that nobody gives any more: %v, want %v of rank 0", err, want)
			}
			return nil
		}
		switch c.Rank() {
		case 0:
			local := make(chan error, 1)
			go func() { local <- lock() }()
			queued := 0
			for queued < waiting && ctx.Err() == nil {
				w.e.mu.Lock()
				w.e.pollOnce()
				queued = len(w.locks.queue)
				w.e.mu.Unlock()
			}
			end(w)
			return <-local
		case 2:
			return lock()
		}
		return nil
	}
	var all sync.WaitGroup
	for r, w := range worlds {
		all.Go(func() {
			if err := errors.Join(rank(w.Comm()), w.Close(ctx)); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	all.Wait()
}

// TestLocksHeldElsewhere: a rank gives back what it holds of another's part, once, by Unlock or, at the latest, by Release.
func TestLocksHeldElsewhere(t *testing.T) {
	p := newPlay(0, []string{"2"})
	w := p.window()
	token := uint64(0)
	p.s.carry = func(h *transport.Header, _ []byte) {
		if h.Kind == kindWindow && windowHeaderOf(h).code == windowLock {
			token = h.Token
		}
	}
	p.s.poll = func(s transport.Sink) int {
		if token == 0 {
			return 0
		}
		h := windowHeader{code: windowAnswer, token: token}.header(w.id)
		token = 0
		s.Message(1, &h, nil)
		return 1
	}
	for _, target := range []int{0, 1} {
		if err := w.Unlock(t.Context(), target); !errors.Is(err, ErrRequest) {
			t.Errorf("the lock of rank %d is not held, and Unlock's error is %v", target, err)
		}
	}
	p.heard(t, "unlocks of nothing")
	for i, want := range []string{"-> 1 lock 1", "-> 1 lock 2", "-> 1 lock 3"} {
		if err := w.Lock(t.Context(), 1, LockShared); err != nil {
			t.Fatalf("lock %d: %v", i, err)
		}
		p.heard(t, "a lock", want)
	}
	if err := w.Unlock(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p.heard(t, "an unlock", "-> 1 unlock 0")
	w.Release()
	p.heard(t, "a release", "-> 1 unlock 0", "-> 1 unlock 0")
}

// TestLockBesideRelease: a wish for this rank's own part that comes when the part has left the window since Lock looked, which nobody
// could grant, is not waited for.
func TestLockBesideRelease(t *testing.T) {
	w := newPlay(0, []string{"2"}).window()
	w.locks.holder = 1
	w.Release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // one that is waited for ends with this
	if err := w.acquire(ctx, 0, LockShared); !errors.Is(err, errWindowFreed) {
		t.Errorf("a lock of a window that has been released: %v, want %v", err, errWindowFreed)
	}
}

// TestLockModes: there are two.
func TestLockModes(t *testing.T) {
	p := newPlay(0, []string{"2"})
	w := p.window()
	for _, target := range []int{0, 1} {
		if err := w.Lock(t.Context(), target, LockExclusive+1); !errors.Is(err, ErrArgument) {
			t.Errorf("a mode that there is not, at rank %d: %v, want %v", target, err, ErrArgument)
		}
	}
	p.heard(t, "refused locks")
}
