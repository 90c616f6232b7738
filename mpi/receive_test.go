package mpi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// shelf is a provider whose arrivals lie in memory. It writes down what it is asked.
type shelf struct {
	script
	finds []transport.Find // of the next looks; none: Nothing
	waits func() bool      // a receive is posted: the message is there for those who poll
	asked []string
}

func (p *shelf) Send(int, *transport.Header, []byte) transport.Outcome {
	p.asked = append(p.asked, "send")
	return transport.Sent
}

func (p *shelf) Take(_ int, want *transport.Header, buf []byte, looks int) (int, transport.Find) {
	p.asked = append(p.asked, fmt.Sprint("take ", looks))
	if len(p.finds) == 0 {
		return 0, transport.Nothing
	}
	found := p.finds[0]
	if p.finds = p.finds[1:]; found != transport.Taken {
		return 0, found
	}
	return copy(buf, "taken"), found
}

func (p *shelf) Pass(int) {}

func (p *shelf) Poll(s transport.Sink) int {
	if !p.waits() {
		return 0
	}
	p.asked = append(p.asked, "poll")
	s.Message(1, &transport.Header{Kind: kindEager, Tag: 3, Bytes: 6}, []byte("polled"))
	return 1
}

// TestReceiveNext: a small message is taken from where it lies if it is there, in a crowd after some turns of the others, and polled
// for with everybody's otherwise. An exchange sends first. The engine's keeper, who looks in every now and then, cuts the looks
// short if it comes in between: such a run does not count.
func TestReceiveNext(t *testing.T) {
	const nothing, taken, other = transport.Nothing, transport.Taken, transport.Other
	recv := func(ctx context.Context, c *Comm, buf []byte) (Status, error) { return Recv(ctx, c, buf, 1, 3) }
	exchange := func(ctx context.Context, c *Comm, buf []byte) (Status, error) {
		return Sendrecv(ctx, c, []byte("out"), 1, 2, buf, 1, 3)
	}
	for _, k := range []struct {
		name    string
		crowded bool
		call    func(context.Context, *Comm, []byte) (Status, error)
		finds   []transport.Find
		asked   []string
		got     string
	}{
		{"there", false, recv, []transport.Find{taken}, []string{"take 8"}, "taken"},
		{"there soon", false, recv, []transport.Find{nothing, taken}, []string{"take 8", "take 8"}, "taken"},
		{"another first", false, recv, []transport.Find{other}, []string{"take 8", "poll"}, "polled"},
		{"not there", false, recv, nil, []string{"take 8", "take 8", "take 8", "take 8", "poll"}, "polled"},
		{"there in a crowd", true, recv, []transport.Find{taken}, []string{"take 1"}, "taken"},
		{"there after a turn", true, recv, []transport.Find{nothing, taken}, []string{"take 1", "take 1"}, "taken"},
		{"another first in a crowd", true, recv, []transport.Find{nothing, other}, []string{"take 1", "take 1", "poll"}, "polled"},
		{"not there after two", true, recv, nil, []string{"take 1", "take 1", "take 1", "poll"}, "polled"},
		{"exchange", false, exchange, []transport.Find{taken}, []string{"send", "take 8"}, "taken"},
		{"exchange in a crowd", true, exchange, []transport.Find{nothing, taken}, []string{"send", "take 1", "take 1"}, "taken"},
	} {
		t.Run(k.name, func(t *testing.T) {
			const tries = 20
			want := Status{Source: 1, Tag: 3, Bytes: len(k.got)}
			for i := 1; ; i++ {
				p, buf := &shelf{finds: k.finds}, make([]byte, 8)
				s, err := receiveFromShelf(t, p, k.crowded, func(ctx context.Context, c *Comm) (Status, error) { return k.call(ctx, c, buf) })
				if err != nil {
					t.Fatal(err)
				}
				if got := string(buf[:s.Bytes]); s == want && got == k.got && slices.Equal(p.asked, k.asked) {
					return
				} else if i == tries {
					t.Fatalf("the last of %d runs received %q, %+v, and asked the provider for %q; want %q, %+v, %q", tries, got, s, p.asked, k.got, want, k.asked)
				}
			}
		})
	}
}

// TestReceivesAtOnce: who gives the processor away in a crowd leads meanwhile, so that of several receivers one at a time does. The race
// detector sees it where two do.
func TestReceivesAtOnce(t *testing.T) {
	const receivers, each = 4, 100
	_, err := receiveFromShelf(t, new(shelf), true, func(ctx context.Context, c *Comm) (Status, error) {
		errs := make(chan error, receivers)
		for range receivers {
			go func() {
				for range each {
					buf := make([]byte, 8)
					if s, err := Recv(ctx, c, buf, 1, 3); err != nil || string(buf[:s.Bytes]) != "polled" {
						errs <- fmt.Errorf("%q: %w", buf, err)
						return
					}
				}
				errs <- nil
			}()
		}
		var all error
		for range receivers {
			all = errors.Join(all, <-errs)
		}
		return Status{}, all
	})
	if err != nil {
		t.Error(err)
	}
}

// receiveFromShelf makes a world of two with the provider, and calls.
func receiveFromShelf(t *testing.T, p *shelf, crowded bool, call func(context.Context, *Comm) (Status, error)) (Status, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p.waits = func() bool { return false }
	p.caps = transport.Caps{EagerBytes: 64, RendezvousBytes: 65, CreditBytes: 1 << 20}
	here := map[string][]byte{"script": nil}
	w, err := Assemble(Assembly{Members: []Member{{Rank: 0, Addresses: here}, {Rank: 1, Addresses: here}}, Providers: []transport.Provider{p}})
	if err != nil {
		t.Fatal(err)
	}
	c := w.Comm()
	e := c.dev.(*engine)
	e.mu.Lock()
	e.peer(1)
	e.crowded = crowded
	p.waits = func() bool { return e.direct != nil || e.match.posted > 0 }
	e.mu.Unlock()
	s, err := call(ctx, c)
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
	return s, err
}
