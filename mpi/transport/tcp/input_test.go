package tcp

import (
	"bytes"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// reader is a connection without a socket, for its incoming stream alone.
func reader() (*conn, *rank) {
	p := &Provider{links: make([]link, 2)}
	p.staging = p.pools.get(stageBytes)
	r := &rank{Provider: p, completed: map[uint64]error{}, lost: map[int]error{}, dst: map[uint64][]byte{1: make([]byte, 1<<10)}}
	return &conn{p: p, peer: 1, fd: -1}, r
}

// framed is a message as it is on the wire.
func framed(h transport.Header, payload []byte) []byte {
	head := make([]byte, maxHeadBytes)
	out := head[:packHeader(head, &h, uint64(len(payload)))]
	if h.Kind == transport.Data && len(payload) > 0 {
		out = append(out, byte(len(payload)), byte(len(payload)>>8))
		out = append(out, make([]byte, wordBytes-2)...)
	}
	return append(out, payload...)
}

func stream() []byte {
	return slices.Concat(
		framed(transport.Header{Kind: 2, Context: 1, Tag: 3, Bytes: 5}, []byte("hello")),
		framed(transport.Header{Kind: 3, Token: 9, Aux: 8, Bytes: 1 << 33}, nil),
		framed(transport.Header{Kind: transport.Data, Token: 1, Bytes: 700}, pattern(700, 1)),
		framed(transport.Header{Kind: 2, Bytes: 300}, pattern(300, 2)),
	)
}

// claimant claims every message that it is asked about, and keeps it as if it had come whole.
type claimant struct {
	*rank
	room []byte
}

func (c *claimant) Claim(_ int, _ *transport.Header, size int) bool {
	c.room = make([]byte, size)
	return true
}

func (c *claimant) Place(peer int, h *transport.Header, off, size int) []byte {
	if h.Kind == transport.Data {
		return c.rank.Place(peer, h, off, size)
	}
	return c.room[off:]
}

func (c *claimant) Placed(peer int, h *transport.Header) {
	if h.Kind == transport.Data {
		c.rank.Placed(peer, h)
		return
	}
	c.messages = append(c.messages, message{peer, *h, c.room})
}

func same(a, b message) bool {
	return a.peer == b.peer && a.h == b.h && bytes.Equal(a.payload, b.payload)
}

// However the stream is cut, the messages are the same.
func TestParseSplits(t *testing.T) {
	raw := stream()
	whole, want := reader()
	if _, err := whole.parse(raw, want); err != nil || len(want.messages) != 3 || len(want.placed) != 1 {
		t.Fatalf("%d messages, %d placed, %v", len(want.messages), len(want.placed), err)
	}
	for step := 1; step < 200; step++ {
		c, got := reader()
		for part := range slices.Chunk(raw, step) {
			if _, err := c.parse(part, got); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
		if !slices.EqualFunc(got.messages, want.messages, same) || !slices.Equal(got.placed, want.placed) || !bytes.Equal(got.dst[1], want.dst[1]) {
			t.Fatalf("step %d: %v, want %v", step, got.messages, want.messages)
		}
	}
}

// Any stream, cut anywhere, gives the same messages or the same refusal, also if what comes in pieces is claimed, and memory
// stays within bounds.
func FuzzParse(f *testing.F) {
	f.Add(stream(), uint16(7))
	f.Add(append(stream(), "GET /"...), uint16(1))
	long := slices.Concat(stream(), framed(transport.Header{Kind: 2, Tag: 4, Bytes: claimBytes + 7}, pattern(claimBytes+7, 3)), stream())
	for _, at := range []uint16{1, uint16(len(stream())) + 19, 3000, claimBytes, uint16(len(long) - 5)} {
		f.Add(long, at)
	}
	f.Fuzz(func(t *testing.T, raw []byte, at uint16) {
		c1, r1 := reader()
		_, err1 := c1.parse(raw, r1)
		cut := min(int(at), len(raw))
		for _, claims := range []bool{false, true} {
			c2, r2 := reader()
			var sink transport.Sink = r2
			if claims {
				sink = &claimant{rank: r2}
			}
			_, err2 := c2.parse(raw[:cut], sink)
			if err2 == nil {
				_, err2 = c2.parse(raw[cut:], sink)
			}
			if (err1 == nil) != (err2 == nil) || !slices.EqualFunc(r1.messages, r2.messages, same) || !slices.Equal(r1.placed, r2.placed) {
				t.Fatalf("cut at %d, claimed %v: %v and %v, %d and %d messages", cut, claims, err1, err2, len(r1.messages), len(r2.messages))
			}
			if len(c2.in.body) > EagerBytes || cap(c2.in.buffer) > stageBytes {
				t.Fatalf("a body of %d bytes in %d", len(c2.in.body), cap(c2.in.buffer))
			}
		}
		if len(c1.in.body) > EagerBytes || cap(c1.in.buffer) > stageBytes {
			t.Fatalf("a body of %d bytes in %d", len(c1.in.body), cap(c1.in.buffer))
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(uint8(2), uint32(1), int32(2), uint64(3), uint64(4), uint64(5), uint64(6))
	f.Fuzz(func(t *testing.T, kind uint8, context uint32, tag int32, bytes, token, aux, payload uint64) {
		h := transport.Header{Kind: transport.Kind(kind), Context: context, Tag: tag, Bytes: bytes, Token: token, Aux: aux}
		raw := make([]byte, maxHeadBytes)
		n := packHeader(raw, &h, payload)
		if m, err := headLength(raw); err != nil || m != n {
			t.Fatalf("length %d, %v, want %d", m, err, n)
		}
		var got transport.Header
		length, err := unpackHeader(raw[:n], &got)
		if got != h || err == nil && length != payload {
			t.Fatalf("%+v of %d, want %+v of %d", got, length, h, payload)
		}
	})
}
