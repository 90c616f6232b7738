package mpi

import (
	"context"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// echo hands every message back to its sender at the next Poll.
type echo struct {
	script
	h     transport.Header
	b     [64]byte
	n     int
	waits bool
}

func (p *echo) Send(_ int, h *transport.Header, payload []byte) transport.Outcome {
	p.h, p.n, p.waits = *h, copy(p.b[:], payload), true
	return transport.Sent
}

func (p *echo) Poll(s transport.Sink) int {
	if !p.waits {
		return 0
	}
	p.waits = false
	s.Message(1, &p.h, p.b[:p.n])
	return 1
}

// BenchmarkEngine is what the engine adds to a provider: one blocking send and
// one blocking receive of 8 B, without any travelling.
func BenchmarkEngine(b *testing.B) {
	p := &echo{}
	p.caps = transport.Caps{EagerBytes: 64, RendezvousBytes: 65, CreditBytes: 1 << 62}
	w, err := Assemble(Assembly{Members: []Member{{Rank: 0, Addresses: map[string][]byte{"script": nil}}, {Rank: 1, Addresses: map[string][]byte{"script": nil}}}, Providers: []transport.Provider{p}})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	defer w.Close(ctx)
	c := w.Comm()
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
