package mpi

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// says has rank 1 send the words of a collective call on the shadow communicator, one message each time the engine looks.
func (p *play) says(messages ...[]uint64) {
	p.s.poll = func(s transport.Sink) int {
		if len(messages) == 0 {
			return 0
		}
		b := Bytes(messages[0])
		messages = messages[1:]
		s.Message(1, &transport.Header{Kind: kindEager, Context: p.c.shadow.context, Tag: tagCollective, Bytes: uint64(len(b))}, b)
		return 1
	}
}

// TestGivenUpIsHeardWhileAMessageWaits: a member's own messages find no room at a member that gives the call up, and will never
// take them. It hears of that, and keeps the messages only until they are of no use.
func TestGivenUpIsHeardWhileAMessageWaits(t *testing.T) {
	for why, narrow := range map[string]func(*peer){
		"no credit":       func(p *peer) { p.credit = 0 },
		"a large message": func(p *peer) { p.caps.RendezvousBytes, p.instantBytes = 8, 8 },
	} {
		t.Run(why, func(t *testing.T) {
			p := newPlay(0, []string{"2"})
			narrow(p.e.peer(1))
			var waiting []uint64
			p.s.carry = func(h *transport.Header, _ []byte) {
				switch h.Kind {
				case kindEager:
					t.Error("a message has found room")
				case kindRTS:
					waiting = append(waiting, h.Token)
				}
			}
			const number, theirContext = 1, 8
			dup := uint64(collectiveDup)
			p.says([]uint64{number, dup, 0, theirContext}, []uint64{number, dup, roundGivenUp, 1})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var at *Error
			if _, err := p.c.Dup(ctx); !errors.Is(err, ErrCancelled) || !errors.As(err, &at) || at.Peer != 1 {
				t.Fatalf("rank 1 has given up, and the error is %v", err)
			}
			p.s.carry = nil
			p.e.mu.Lock()
			defer p.e.mu.Unlock()
			for _, token := range waiting {
				p.e.Message(1, &transport.Header{Kind: kindRetracted, Token: token}, nil)
			}
			if left := len(p.e.ops.all) - len(p.e.ops.free); len(waiting) < 2 || left != 1 {
				t.Errorf("%d messages waited, and %d operations are in use, want that of the blocking receive", len(waiting), left)
			}
		})
	}
}

// TestContextsEnd: where one member has no id left, none makes a communicator, with an id of Shrink's or of the world.
func TestContextsEnd(t *testing.T) {
	worlds, err := Local(2, LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := worlds[1].dev.(*engine)
	e.mu.Lock()
	e.context = shrinkContexts - contextStep
	e.mu.Unlock()
	for n, want := range []error{nil, ErrArgument, ErrArgument} {
		var both sync.WaitGroup
		for _, w := range worlds {
			both.Go(func() {
				if c, err := w.Comm().Dup(t.Context()); !errors.Is(err, want) || c != nil && c.context >= shrinkContexts {
					t.Errorf("rank %d, communicator %d: %v, %v; want the error %v", w.Rank(), n, c, err, want)
				}
			})
		}
		both.Wait()
	}
}

// TestMembersUseOneName: the members of a communicator call it the same, also when some of them have not been in others, or
// have failed to make one.
func TestMembersUseOneName(t *testing.T) {
	worlds, err := Local(3, LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended, end := context.WithCancel(ctx)
	end()
	var all sync.WaitGroup
	for r, w := range worlds {
		all.Go(func() {
			c := w.Comm()
			_, _ = c.Dup(ended) // may have succeeded on some
			color := 0
			if r == 0 {
				color = Undefined
			}
			_, err := c.Split(ctx, color, 0)
			d, again := c.Split(ctx, 0, 0)
			if err := errors.Join(err, again); err != nil {
				t.Errorf("rank %d: %v", r, err)
			} else if want := "world.split3"; d.Name() != want {
				t.Errorf("rank %d calls it %s, want %s", r, d.Name(), want)
			}
			if err := w.Close(ctx); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	all.Wait()
}

// TestEndedCommunicatorOfOne: where no other member is needed a communicator that has been revoked or freed makes no others
// either, nor windows.
func TestEndedCommunicatorOfOne(t *testing.T) {
	for _, k := range []struct {
		end  func(*Comm)
		want error
	}{{(*Comm).Revoke, ErrRevoked}, {(*Comm).Free, ErrClosed}} {
		runLocal(t, 1, LocalOptions{}, func(ctx context.Context, world *Comm) error {
			c, err := world.Dup(ctx)
			if err != nil {
				return err
			}
			w, err := NewWindow(ctx, c, make([]int32, 1))
			if err != nil {
				return err
			}
			defer w.Release()
			k.end(c)
			_, dup := c.Dup(ctx)
			_, split := c.Split(ctx, 0, 0)
			_, window := NewWindow(ctx, c, make([]int32, 1))
			_, shared := AllocShared[int32](ctx, c, 1)
			for what, err := range map[string]error{"dup": dup, "split": split, "window": window, "fence": w.Fence(ctx), "allocshared": shared} {
				if !errors.Is(err, k.want) {
					t.Errorf("%s: %v, want %v", what, err, k.want)
				}
			}
			return nil
		})
	}
}
