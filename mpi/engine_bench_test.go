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

func echoComm(b *testing.B) *Comm {
	p := &echo{}
	p.caps = transport.Caps{EagerBytes: 64, RendezvousBytes: 65, CreditBytes: 1 << 62}
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
	ctx, c := context.Background(), echoComm(b)
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

// BenchmarkEngineWindow is the same for 64 nonblocking receives and sends at
// once; the time is that of one pair.
func BenchmarkEngineWindow(b *testing.B) {
	ctx, c := context.Background(), echoComm(b)
	const window = 64
	out, in := make([]byte, 8), make([]byte, 8)
	rs := make([]Request, 2*window)
	b.ReportAllocs()
	for i := 0; i < b.N; i += window {
		for j := range window {
			rs[j] = Irecv(c, in, 1, 1)
		}
		for j := range window {
			rs[window+j] = Isend(c, out, 1, 1)
		}
		if err := WaitAll(ctx, rs); err != nil {
			b.Fatal(err)
		}
	}
}
