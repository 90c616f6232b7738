package mpi

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Of messages that come at once the engine takes as many, from the first on, as receives of theirs are the first in their queue,
// unless a wildcard might come before. The others it is given one by one.
func TestBatch(t *testing.T) {
	for name, x := range map[string]struct {
		receives [][2]int // source and tag, by turns of the posting
		lengths  []int    // of their buffers
		taken    int
		errors   int
	}{
		"as many receives":      {[][2]int{{1, 5}, {1, 5}, {1, 5}}, []int{8, 8, 8}, 3, 0},
		"fewer":                 {[][2]int{{1, 5}, {1, 5}}, []int{8, 9}, 2, 0},
		"none":                  {nil, nil, 0, 0},
		"another tag between":   {[][2]int{{1, 5}, {1, 4}, {1, 5}}, []int{8, 8, 8}, 2, 0},
		"another source first":  {[][2]int{{2, 5}, {1, 5}}, []int{8, 8}, 1, 0},
		"too short a buffer":    {[][2]int{{1, 5}, {1, 5}, {1, 5}}, []int{8, 7, 8}, 3, 1},
		"any source may be it":  {[][2]int{{1, 5}, {AnySource, 5}, {1, 5}}, []int{8, 8, 8}, 0, 0},
		"any tag on another":    {[][2]int{{1, 5}, {2, AnyTag}}, []int{8, 8}, 0, 0},
		"more receives than it": {[][2]int{{1, 5}, {1, 5}, {1, 5}, {1, 5}}, []int{8, 8, 8, 8}, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(0, []string{"3"})
			var rs []Request
			var bufs [][]byte
			for i, r := range x.receives {
				bufs = append(bufs, make([]byte, x.lengths[i]))
				rs = append(rs, Irecv(p.c, bufs[i], r[0], r[1]))
			}
			const count, strideBytes = 3, 16
			payloads := make([]byte, count*strideBytes)
			for i := range count {
				payloads[i*strideBytes] = byte(i + 1)
			}
			h := transport.Header{Kind: kindEager, Context: p.c.context, Tag: 5, Bytes: 8}
			p.e.mu.Lock()
			defer p.e.mu.Unlock()
			if taken := p.e.Batch(1, &h, payloads, strideBytes, count); taken != x.taken {
				t.Fatalf("%d taken, want %d", taken, x.taken)
			}
			if owed := p.e.peer(1).owed; owed != x.taken*(8+transport.EnvelopeBytes) {
				t.Errorf("%d bytes of credit owed for %d messages", owed, x.taken)
			}
			next, wrong := byte(1), 0
			for i, r := range rs {
				if !r.o.finished() {
					continue
				}
				if r.o.err != nil {
					wrong++
				}
				if bufs[i][0] != next || r.o.status() != (Status{Source: 1, Tag: 5, Bytes: 8}) {
					t.Errorf("receive %d has message %d, and %+v; want %d", i, bufs[i][0], r.o.status(), next)
				}
				next++
			}
			if int(next)-1 != x.taken || wrong != x.errors {
				t.Errorf("%d receives are over, %d with an error; want %d and %d", next-1, wrong, x.taken, x.errors)
			}
		})
	}
	t.Run("other kinds and headers", func(t *testing.T) {
		p := newPlay(0, []string{"3"})
		Irecv(p.c, make([]byte, 8), 1, 5)
		for _, h := range []transport.Header{{Kind: kindRTS, Tag: 5, Bytes: 8, Token: 1}, {Kind: kindEager, Tag: -5, Bytes: 8}} {
			h.Context = p.c.context
			if taken := p.e.Batch(1, &h, make([]byte, 16), 8, 2); taken != 0 {
				t.Errorf("%d of %+v taken", taken, h)
			}
		}
	})
}
