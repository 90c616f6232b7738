package mpi

import (
	"context"
	"errors"
	"slices"
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
					p.e.mu.Lock()
					if begun = p.e.holds(1); begun {
						p.e.lose(1, "it was stopped")
					}
					p.e.mu.Unlock()
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
			p.e.mu.Lock()
			watched, left := p.e.watched, len(p.e.ops.all)-len(p.e.ops.free)
			p.e.mu.Unlock()
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
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
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

// TestPersistentInFlight: a buffer that a provider still holds is not given to it a second time.
func TestPersistentInFlight(t *testing.T) {
	p := newPlay(0, []string{"2", "pull"})
	p.pulled(1)
	again := RecvInit(p.c, make([]byte, 500), 1, 0)
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := again.Wait(ended)
	free(t, err, false)
	free(t, again.Start(), false)
	p.complete(1)
	free(t, err, true)
	if err := again.Start(); err != nil {
		t.Errorf("the buffer is free, and Start says %v", err)
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

// TestSpentByInFlight: a request whose Wait has said that its buffer is in flight is spent. The operation is given back
// when it finishes, and may be another caller's by the time of the next Wait.
func TestSpentByInFlight(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	again := map[string]func(context.Context, Request) error{
		"wait":    func(ctx context.Context, r Request) error { _, err := r.Wait(ctx); return err },
		"test":    func(_ context.Context, r Request) error { _, _, err := r.Test(); return err },
		"waitall": func(ctx context.Context, r Request) error { return WaitAll(ctx, []Request{r}) },
		"waitany": func(ctx context.Context, r Request) error { _, _, err := WaitAny(ctx, []Request{r}); return err },
	}
	for name, wait := range again {
		t.Run(name, func(t *testing.T) {
			p := newPlay(0, []string{"3", "pull"})
			p.pulled(1)
			r := Irecv(p.c, make([]byte, 500), 1, 0)
			_, err := r.Wait(ended)
			free(t, err, false)
			p.s.poll = func(transport.Sink) int { // while the second Wait waits, if it does
				for _, o := range p.e.ops.all {
					if o.held(1) {
						p.e.Complete(o.token(), errors.New("given up"))
						return 1
					}
				}
				return 0
			}
			select {
			case <-r.Done():
				t.Error("Done says that the buffer is free")
			default:
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if again := wait(ctx, r); !errors.Is(again, ErrRequest) {
				t.Errorf("the second time: %v", again)
			}
			p.complete(1)
			free(t, err, true)
		})
	}
}

// TestStrandedOnce: the operation of blocking receives is used again, and a loss that once let its caller go is not the
// next one's.
func TestStrandedOnce(t *testing.T) {
	p := newPlay(0, []string{"3", "pull"})
	p.pulled(1)
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	// The message of rank 1 is held: as if it had come while the receive was waiting.
	a := p.e.match.first
	p.e.match.release(a)
	o := p.e.recvDirect(p.c, make([]byte, 500), 1, 0)
	p.e.direct = nil
	p.e.begin(o, a.env, a.bytes, a.token, a.key)
	p.e.lose(1, "it was killed")
	p.e.strand(o)
	p.e.Complete(o.token(), errors.New("given up"))
	if _, err := p.e.collect(o); !errors.Is(err, ErrPeerLost) || errors.Is(err, ErrInFlight) {
		t.Errorf("the provider is done with the buffer, and the error is %v", err)
	}
	next := p.e.recvDirect(p.c, make([]byte, 8), 2, 0)
	if next != o {
		t.Fatal("the blocking receive has another operation: nothing is tested")
	}
	if next.over() || next.status() != (Status{}) {
		t.Errorf("a receive from another rank is over before it has begun: %v, status %+v", next.stranded, next.status())
	}
}

// TestOlderReceiveFirst: a message that was on its way to a receive is taken back. The receive goes on as if it had never
// been sent, and is still older than a blocking one that was called meanwhile.
func TestOlderReceiveFirst(t *testing.T) {
	p := newPlay(0, []string{"2"})
	p.do(t, 0, []string{"recv", "A", "1", "5", "500"})
	p.do(t, 0, []string{"rts", "1", "77", "5", "500"})
	p.e.mu.Lock()
	own := p.e.recvDirect(p.c, make([]byte, 500), 1, 5)
	p.e.mu.Unlock()
	p.do(t, 0, []string{"retract", "1", "77", "A"})
	got := p.do(t, 0, []string{"eager", "1", "5", "10"})
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if len(got) != 1 || got[0] != "A has 10 B from 1 tag 5" || own.finished() {
		t.Errorf("the next message: %q; the later receive has it: %v", got, own.finished())
	}
	p.e.Message(1, &transport.Header{Kind: kindEager, Tag: 5, Bytes: 20}, make([]byte, 20))
	if !own.finished() || own.bytes != 20 {
		t.Errorf("the later receive has not got the message after it: %+v", own.status())
	}
}

// TestContextAmidTraffic: a wait ends with its context although something for others comes all the time.
func TestContextAmidTraffic(t *testing.T) {
	p := newPlay(0, []string{"2"})
	p.s.poll = func(transport.Sink) int { return 1 }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Recv(ctx, p.c, make([]byte, 8), 1, 0)
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the context ended a minute ago")
	}
}

// TestRevokedBeforeMade: what has come for a communicator that is not made here yet is dropped when that is revoked, and its
// sender has its credit back.
func TestRevokedBeforeMade(t *testing.T) {
	p := newPlay(0, []string{"2"})
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	p.e.Message(1, &transport.Header{Kind: kindEager, Context: 8, Tag: 5, Bytes: 90}, make([]byte, 90))
	if p.e.peer(1).held == 0 {
		t.Fatal("nothing is held: nothing is tested")
	}
	p.e.Message(1, &transport.Header{Kind: kindRevoke, Context: 8}, nil)
	if held := p.e.peer(1).held; held != 0 || p.e.match.unexpected != 0 {
		t.Errorf("%d bytes of %d messages are held of a communicator that is revoked", held, p.e.match.unexpected)
	}
}

// TestPullGivenUp: a blocking receive is given up while its pull waits for room. Its sender hears that its memory is its
// own again, and the next blocking receive has nothing of it.
func TestPullGivenUp(t *testing.T) {
	p := newPlay(0, []string{"2", "pull"})
	p.s.full = true
	p.do(t, 0, []string{"send", "S", "1", "5", "10"})
	p.s.poll = func(transport.Sink) int {
		if p.e.direct == nil {
			return 0
		}
		p.pulled(1)
		return 1
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Recv(ended, p.c, make([]byte, 500), 1, 0); !errors.Is(err, context.Canceled) {
		t.Fatalf("the context has ended, and the error is %v", err)
	}
	want := []string{"-> 1 eager tag 5, 10 B", "-> 1 FIN for 9", "S done"}
	if got := p.do(t, 0, []string{"room"}); !slices.Equal(got, want) {
		t.Errorf("with room for both the engine does %q, want %q", got, want)
	}
	if o := p.e.own; o.busy || o.phase != phaseFree {
		t.Errorf("the operation of blocking receives is in phase %d, the provider has it: %v", o.phase, o.busy)
	}
}
