package mpi

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestLostPeerHoldsBuffer: a peer is lost, and the provider cannot tell whether it still writes, as when its process is
// stopped. Callers without a deadline go, in every way of waiting, and Done says when the buffer is free.
func TestLostPeerHoldsBuffer(t *testing.T) {
	ways := map[string]func(context.Context, *Comm, []byte) error{
		"recv": func(ctx context.Context, c *Comm, buf []byte) error { _, err := Recv(ctx, c, buf, 1, 0); return err },
		"wait": func(ctx context.Context, c *Comm, buf []byte) error {
			_, err := Irecv(c, buf, 1, 0).Wait(ctx)
			return err
		},
		"test": func(ctx context.Context, c *Comm, buf []byte) error {
			r := Irecv(c, buf, 1, 0)
			for ctx.Err() == nil {
				if _, done, err := r.Test(); done {
					return err
				}
			}
			return ctx.Err()
		},
		"done": func(ctx context.Context, c *Comm, buf []byte) error {
			r := Irecv(c, buf, 1, 0)
			select {
			case <-r.Done():
			case <-ctx.Done():
				return ctx.Err()
			}
			_, err := r.Wait(ctx)
			return err
		},
		"waitany": func(ctx context.Context, c *Comm, buf []byte) error {
			_, _, err := WaitAny(ctx, []Request{Irecv(c, buf, 1, 0), {}})
			return err
		},
		"waitall": func(ctx context.Context, c *Comm, buf []byte) error {
			return WaitAll(ctx, []Request{{}, Irecv(c, buf, 1, 0)})
		},
	}
	for name, wait := range ways {
		t.Run(name, func(t *testing.T) {
			p := newPlay(0, []string{"3", "pull"})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p.pulled(1)
			losing := time.AfterFunc(0, func() {
				for begun := false; !begun && ctx.Err() == nil; {
					p.e.lock()
					if begun = p.e.holds(1); begun {
						p.e.lose(1, "it was stopped")
					}
					p.e.unlock()
				}
			})
			defer losing.Stop()
			err := wait(ctx, p.c, make([]byte, 500))
			var at *Error
			if !errors.Is(err, ErrInFlight) || !errors.Is(err, ErrPeerLost) || !errors.As(err, &at) || at.Peer != 1 || at.Done == nil {
				t.Fatalf("the provider holds the buffer, and the error is %v", err)
			}
			t.Log(err)
			free(t, err, false)
			p.complete(1)
			free(t, err, true)
			p.e.lock()
			watched, left := p.e.watched, len(p.e.ops.all)-len(p.e.ops.free)
			p.e.unlock()
			if watched != 0 || left != 1 {
				t.Errorf("%d operations watched and %d in use, want none, and that of the blocking receive", watched, left)
			}
		})
	}
}

// pulled has a message from each of the ranks be under way by pull as soon as it is received.
func (p *play) pulled(ranks ...int) {
	for _, r := range ranks {
		p.e.Message(r, &transport.Header{Kind: kindRTS, Token: 9, Bytes: 500}, make([]byte, keyBytes))
	}
}

// complete has the provider let go of the memory of the operation with a rank.
func (p *play) complete(rank int) {
	p.e.lock()
	defer p.e.unlock()
	for _, o := range p.e.ops.all {
		if o.held(rank) {
			p.e.Complete(o.token(), errors.New("given up"))
		}
	}
}

// free reports whether Done says that the buffers are free. If they are to be, it waits for that.
func free(t *testing.T, err error, want bool) {
	t.Helper()
	var at *Error
	if !errors.Is(err, ErrInFlight) || !errors.As(err, &at) || at.Done == nil {
		t.Fatalf("a buffer is in use, and the error is %v", err)
	}
	wait := time.Duration(0)
	if want {
		wait = time.Minute
	}
	select {
	case <-at.Done:
		if !want {
			t.Error("Done is closed while a buffer is in use")
		}
	case <-time.After(wait):
		if want {
			t.Error("Done is not closed, and all buffers are free")
		}
	}
}

// TestSendrecvInFlight: the send fails, and the buffer of the receive is in use.
func TestSendrecvInFlight(t *testing.T) {
	p := newPlay(0, []string{"3", "pull"})
	p.pulled(1)
	p.s.poll = func(s transport.Sink) int {
		for _, o := range p.e.ops.all {
			if o.retract && o.phase == phaseOffered {
				s.Message(2, &transport.Header{Kind: kindRetracted, Token: o.token()}, nil)
				return 1
			}
		}
		return 0
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Sendrecv(ended, p.c, make([]byte, 500), 2, 0, make([]byte, 500), 1, 0)
	if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrCancelled) {
		t.Errorf("the context has ended, and the error is %v", err)
	}
	free(t, err, false)
	p.complete(1)
	free(t, err, true)
}

// TestWaitAllInFlight: Done speaks for all buffers.
func TestWaitAllInFlight(t *testing.T) {
	for _, first := range []int{1, 2} {
		p := newPlay(0, []string{"3", "pull"})
		p.pulled(1, 2)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := WaitAll(ended, []Request{Irecv(p.c, make([]byte, 500), 1, 0), Irecv(p.c, make([]byte, 500), 2, 0)})
		free(t, err, false)
		p.complete(first)
		free(t, err, false)
		p.complete(3 - first)
		free(t, err, true)
	}
}
