package mpi

import (
	"context"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// echo hands every message back to its sender at the next Poll.
type echo struct {
	script
	said []said
}

type said struct {
	h transport.Header
	b [64]byte
	n int
}

func (p *echo) Send(_ int, h *transport.Header, payload []byte) transport.Outcome {
	p.said = append(p.said, said{h: *h})
	last := &p.said[len(p.said)-1]
	last.n = copy(last.b[:], payload)
	return transport.Sent
}

func (p *echo) Poll(s transport.Sink) int {
	n := len(p.said)
	for i := range p.said {
		m := &p.said[i]
		s.Message(1, &m.h, m.b[:m.n])
	}
	p.said = p.said[:0]
	return n
}

// faucet has as many messages as are asked of it, takes what is sent, and hands over so many at once.
type faucet struct {
	script
	due, atOnce int
	h           transport.Header
	payload     [8 * mostAtOnce]byte
}

const mostAtOnce = 6 // as many of a word as shm's cells hold

func (*faucet) Send(int, *transport.Header, []byte) transport.Outcome { return transport.Sent }

func (p *faucet) Poll(s transport.Sink) int {
	n := p.due
	for ; p.due > 0 && p.atOnce > 1; p.due -= p.atOnce {
		p.atOnce = min(p.atOnce, p.due)
		if s.(transport.Batcher).Batch(1, &p.h, p.payload[:8*p.atOnce], 8, p.atOnce) != p.atOnce {
			panic("a message that no receive waits for")
		}
	}
	for ; p.due > 0; p.due-- {
		s.Message(1, &p.h, p.payload[:8])
	}
	return n
}

// engineComm is the world's communicator of two ranks over a provider whose script is s.
func engineComm(b *testing.B, p transport.Provider, s *script) *Comm {
	s.caps = transport.Caps{EagerBytes: 64, RendezvousBytes: 65, CreditBytes: 1 << 62}
	here := map[string][]byte{"script": nil}
	w, err := Assemble(Assembly{Members: []Member{{Rank: 0, Addresses: here}, {Rank: 1, Addresses: here}}, Providers: []transport.Provider{p}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { w.Close(context.Background()) })
	return w.Comm()
}

// BenchmarkEngine is what the engine adds to a provider: one blocking send and
// one blocking receive of 8 B, without any travelling.
func BenchmarkEngine(b *testing.B) {
	p := &echo{}
	ctx, c := context.Background(), engineComm(b, p, &p.script)
	out, in := make([]byte, 8), make([]byte, 8)
	b.ReportAllocs()
	for b.Loop() {
		if err := Send(ctx, c, out, 1, 1); err != nil {
			b.Fatal(err)
		}
		if _, err := Recv(ctx, c, in, 1, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEngineIrecv is what a nonblocking receive of 8 B takes, of 64 at once, with its message, that comes alone or with others.
func BenchmarkEngineIrecv(b *testing.B) {
	for name, atOnce := range map[string]int{"alone": 1, "batches": mostAtOnce} {
		b.Run(name, func(b *testing.B) {
			p := &faucet{h: transport.Header{Kind: kindEager, Bytes: 8, Tag: 1}}
			c, in := engineComm(b, p, &p.script), make([]byte, 8)
			p.h.Context = c.context
			inWindows(b, func() Request { return Irecv(c, in, 1, 1) }, func(window int) { p.due, p.atOnce = window, atOnce })
		})
	}
}

// BenchmarkEngineIsend is what a nonblocking send of 8 B takes, of 64 at once.
func BenchmarkEngineIsend(b *testing.B) {
	p := &faucet{}
	c, out := engineComm(b, p, &p.script), make([]byte, 8)
	inWindows(b, func() Request { return Isend(c, out, 1, 1) }, func(int) {})
}

// inWindows starts 64 operations, says so and waits for them, again and again.
func inWindows(b *testing.B, start func() Request, started func(window int)) {
	ctx, rs := context.Background(), make([]Request, 64)
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(rs) {
		for j := range rs {
			rs[j] = start()
		}
		started(len(rs))
		if err := WaitAll(ctx, rs); err != nil {
			b.Fatal(err)
		}
	}
}
