package mpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// TestLongSelfOutsideTheLock: others have the world's lock while a long message of a rank to itself is copied. Whatever
// they do then, it is received whole, and nobody has a buffer back before.
func TestLongSelfOutsideTheLock(t *testing.T) {
	amid := map[string]func(w *World, c *Comm, r Request) error{
		"cancel": func(_ *World, _ *Comm, r Request) error { r.Cancel(); return nil },
		"revoke": func(_ *World, c *Comm, _ Request) error { c.Revoke(); return nil },
		"free":   func(_ *World, c *Comm, _ Request) error { c.Free(); return nil },
		"close":  func(w *World, _ *Comm, _ Request) error { return w.Close(t.Context()) },
		"wait":   func(*World, *Comm, Request) error { return nil },
	}
	for name, amid := range amid {
		for _, sentFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sent first: %v", name, sentFirst), func(t *testing.T) {
				for start := time.Now(); !amidSelf(t, sentFirst, amid); {
					if time.Since(start) > 20*time.Second {
						t.Fatal("nobody has had the lock while a message was copied")
					}
				}
			})
		}
	}
}

// amidSelf has a rank send itself a long message and, while that is copied, does something and waits for the first of the
// two requests with a context that has ended. It reports false if the message was there before that.
func amidSelf(t *testing.T, sentFirst bool, amid func(*World, *Comm, Request) error) bool {
	worlds, err := Local(1, LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := worlds[0]
	defer w.Close(t.Context()) // it may be closed already
	c, err := w.Comm().Dup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in, out := make([]byte, 16<<20), bytes.Repeat([]byte{7}, 16<<20)
	first, second := func() Request { return Irecv(c, in, 0, 1) }, func() Request { return Isend(c, out, 0, 1) }
	if sentFirst {
		first, second = second, first
	}
	r := first()
	seen := make(chan bool)
	go func() {
		moves := r.moves()
		if moves {
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			err := amid(w, c, r)
			_, werr := r.Wait(ended)
			var at *Error
			if errors.Is(werr, ErrInFlight) && errors.As(werr, &at) { // the machine is slow
				<-at.Done
				werr = nil
			}
			if err = errors.Join(err, werr); err != nil || !bytes.Equal(in, out) {
				t.Errorf("a message amid which that happened is received whole: %v, with error %v", bytes.Equal(in, out), err)
			}
		}
		seen <- moves
	}()
	if _, err := second().Wait(t.Context()); err != nil {
		t.Error(err)
	}
	return <-seen
}

// moves reports whether the message of a request is seen on its way before it is there.
func (r Request) moves() bool {
	e := r.o.dev.(*engine)
	for ; ; runtime.Gosched() {
		e.mu.Lock()
		phase := r.o.phase
		e.mu.Unlock()
		switch phase {
		case phaseMoving:
			return true
		case phaseFinished:
			return false
		}
	}
}
