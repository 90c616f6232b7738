package mpi

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// shelf is a provider whose arrivals lie in memory. It writes down what it is asked.
type shelf struct {
	script
	finds []transport.Find // of the next looks; none: Nothing
	takes int              // after so many the message is there for those who poll
	asked []string
}

func (p *shelf) Send(int, *transport.Header, []byte) transport.Outcome {
	p.asked = append(p.asked, "send")
	return transport.Sent
}

func (p *shelf) Take(_ int, want *transport.Header, buf []byte, looks int) (int, transport.Find) {
	p.asked = append(p.asked, fmt.Sprint("take ", looks))
	p.takes--
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
	if p.takes != 0 {
		return 0
	}
	p.takes = -1
	p.asked = append(p.asked, "poll")
	s.Message(1, &transport.Header{Kind: kindEager, Tag: 3, Bytes: 6}, []byte("polled"))
	return 1
}

// TestReceiveNext: a small message is taken from where it lies if it is there, in a crowd after some turns of the others, and polled
// for with everybody's otherwise. An exchange sends first.
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
			p := &shelf{finds: k.finds, takes: -1}
			if last := len(k.asked) - 1; k.asked[last] == "poll" {
				p.takes = last
			}
			p.caps = transport.Caps{EagerBytes: 64, RendezvousBytes: 65, CreditBytes: 1 << 20}
			here := map[string][]byte{"script": nil}
			w, err := Assemble(Assembly{Members: []Member{{Rank: 0, Addresses: here}, {Rank: 1, Addresses: here}}, Providers: []transport.Provider{p}})
			if err != nil {
				t.Fatal(err)
			}
			c := w.Comm()
			e := c.dev.(*engine)
			e.lock()
			e.peer(1)
			e.crowded = k.crowded
			e.unlock()
			buf := make([]byte, 8)
			s, err := k.call(t.Context(), c, buf)
			if want := (Status{Source: 1, Tag: 3, Bytes: len(k.got)}); err != nil || s != want || string(buf[:s.Bytes]) != k.got {
				t.Errorf("%q, %+v, %v; want %q, %+v", buf, s, err, k.got, want)
			}
			if !slices.Equal(p.asked, k.asked) {
				t.Errorf("the provider was asked for %q, want %q", p.asked, k.asked)
			}
			if err := w.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
