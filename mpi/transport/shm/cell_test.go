package shm

import (
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// looseSink takes everything.
type looseSink struct{ buf [1 << 16]byte }

func (s *looseSink) Message(_ int, _ *transport.Header, payload []byte) { copy(s.buf[:], payload) }
func (s *looseSink) Place(_ int, _ *transport.Header, _, _ int) []byte  { return s.buf[:] }
func (s *looseSink) Placed(int, *transport.Header)                      {}
func (s *looseSink) Complete(uint64, error)                             {}
func (s *looseSink) Lost(int, error)                                    {}
func (s *looseSink) Outside(work func())                                { work() }

// FuzzCells has a peer that writes anything into its cells and counters. The
// pair ends with an error at the worst.
func FuzzCells(f *testing.F) {
	seed := func(words ...uint64) []byte {
		var b []byte
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	f.Add(uint64(0), seed(word0(2, formShort, 8), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(0), seed(word0(2, formShort, 1000), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(1), seed(word0(1, formFull, 24), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(2), seed(word0(2, formRing, 0), 1, 2, 3, 4, span(1<<20-8, 9), 6, 7))
	f.Add(uint64(0), seed(word0(1, formOpen, 0), 1, 1<<63, 3, 4, 1<<63, 6, 7))
	f.Add(uint64(0), append(seed(word0(1, formOpen, 0), 1, 100, 3, 4, 100, 6, 7), seed(word0(1, formChunk, 0), span(0, 101), 0, 0, 0, 0, 0, 0)...))
	f.Add(uint64(1<<40), seed(word0(1, formAbort, 0), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(0), seed(word0(0, formHelp, 0), 255|1<<32, 2, 1<<40, 4, 5, 6, 7))
	f.Add(uint64(0), seed(word0(2, formRun, runInline(8, 6)), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(0), seed(word0(2, formRun, runInline(9, 4)), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(0), seed(word0(2, formRun, runInline(255, 255)), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(0), seed(word0(1, formRun, runInline(8, 1)), 1, 2, 3, 4, 5, 6, 7))
	f.Add(uint64(0), seed(word0(0, 77, 0), 1, 2, 3, 4, 5, 6, 7))

	f.Fuzz(func(t *testing.T, credit uint64, cellsOf []byte) {
		memory, err := CreateSegment("fisterra-fuzz", pairBytes, baseBytes, OrdinaryPages)
		if err != nil {
			t.Fatal(err)
		}
		mem, err := mapSegment(memory, pairBytes)
		if err != nil {
			t.Fatal(err)
		}
		bell, err := newDoorbell()
		if err != nil {
			t.Fatal(err)
		}
		defer bell.close()
		p := &Provider{cfg: Config{Rank: 0, Size: 2}, bell: bell, peers: make([]*endpoint, 2)}
		ep := p.endpoint(1)
		l := newLink(new(net.UnixConn))
		l.mem, l.memory, l.board, l.bell = mem, memory, make([]byte, boardBytes), bell.bell
		defer func() { l.board = nil; l.bell = -1; l.close() }()
		ep.attach(l)

		ep.out.next = 7
		ep.out.credit.Store(credit)
		n := len(cellsOf) / cellBytes
		for i := range min(n, cells) {
			c := &ep.in.cells[i]
			for w := range c {
				c[w] = binary.LittleEndian.Uint64(cellsOf[i*cellBytes+8*w:])
			}
			atomic.StoreUint64(&c[0], c[0]>>32<<32|uint64(i+1))
		}
		var sink looseSink
		for range 2 + n/drainCells {
			ep.drain(&sink)
		}
		ep.refresh()
		if ep.broken != nil && !errors.Is(ep.broken, errMalformed) {
			t.Errorf("a malformed cell is reported as %v", ep.broken)
		}
		if read := cellsRead(&ep.in); ep.broken == nil && read != uint64(min(n, cells)) {
			t.Errorf("%d of %d cells taken without an error", read, n)
		}
	})
}

// FuzzHello has a peer that says anything.
func FuzzHello(f *testing.F) {
	side := party{cfg: &Config{Rank: 1, Size: 4, Job: "job", Secret: testSecret}}
	f.Add(pack(side.hello(0)))
	f.Add([]byte("fisterra-shm"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := unpackHello(b)
		if err != nil {
			return
		}
		s := party{cfg: side.cfg, peer: h}
		s.own = s.hello(int(h.From))
		if err := s.check(); err == nil && (h.From >= 4 || h.From == 1 || h.To != 1) {
			t.Errorf("admitted %+v", h)
		}
	})
}

func FuzzAddress(f *testing.F) {
	a, err := newAddress()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(a.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := parseAddress(b); err == nil && string(got.encode()) != string(b) {
			t.Errorf("%x is read as %+v", b, got)
		}
	})
}

// TestByteRing gives out pieces and takes them back in all orders a sender
// sees: no two live pieces may overlap, and room for a quarter is never
// refused when all but a quarter is free.
func TestByteRing(t *testing.T) {
	for _, step := range []int{100, 4096, 5000, firstRing / 4} {
		r := byteRing{most: ringLimit(1 + step%3)}
		var backed uint32
		r.more = func(from, to uint32) error {
			if from != backed {
				t.Fatalf("memory from %d on after %d", from, backed)
			}
			backed = to
			return nil
		}
		type live struct{ from, to uint32 }
		var pieces []live
		var sent, credited uint64
		for round := range 5000 {
			n := 1 + (round*7919)%step
			if offset, ok := r.alloc(n, sent); ok {
				to := offset + uint32(n)
				if to > backed {
					t.Fatalf("round %d: piece %d-%d of %d", round, offset, to, backed)
				}
				for _, p := range pieces {
					if offset < p.to && p.from < to {
						t.Fatalf("round %d: piece %d-%d overlaps %d-%d", round, offset, to, p.from, p.to)
					}
				}
				pieces = append(pieces, live{offset, to})
				sent++
			} else if len(pieces)*step < firstRing/4 {
				t.Fatalf("round %d: no room for %d bytes beside %d pieces", round, n, len(pieces))
			}
			if round%3 == 0 || len(pieces) > 200 {
				k := min(len(pieces), 1+round%5)
				pieces = pieces[k:]
				credited += uint64(k)
				r.release(credited)
			}
		}
	}
}

// TestRingGaps: behind what is long enough to be read ahead of there is a gap, where the ring has room for it, and a short
// piece follows at once.
func TestRingGaps(t *testing.T) {
	for _, k := range []struct {
		most    uint32
		backs   uint32 // bytes of memory that there are
		n       int
		gap     uint32
		size    uint32
		because string
	}{
		{ringBytes, ringBytes, gapFrom, memcopy.ReadAheadBytes, gapRing, "long"},
		{ringBytes, ringBytes, gapFrom - 1, 0, firstRing, "short"},
		{firstRing, ringBytes, gapFrom, 0, firstRing, "one of many rings"},
		{ringBytes, firstRing, gapFrom, 0, firstRing, "no memory"},
	} {
		r := byteRing{most: k.most, more: func(_, to uint32) error {
			if to > k.backs {
				return unix.ENOSPC
			}
			return nil
		}}
		from, ok := r.alloc(k.n, 0)
		next, too := r.alloc(k.n, 1)
		if !ok || !too || next-from != (uint32(k.n)+pieceAlign-1)&^(pieceAlign-1)+k.gap || r.size != k.size {
			t.Errorf("%s: pieces of %d bytes at %d and %d of %d (%v, %v)", k.because, k.n, from, next, r.size, ok, too)
		}
	}
}

func TestRingLimit(t *testing.T) {
	for _, c := range []struct{ peers, want int }{
		{1, ringBytes}, {7, ringBytes}, {15, 1 << 20}, {23, 256 << 10}, {63, firstRing}, {1000, firstRing},
	} {
		got := int(ringLimit(c.peers))
		if got != c.want {
			t.Errorf("%d peers: %d bytes each, want %d", c.peers, got, c.want)
		}
		if all := got * c.peers * (c.peers + 1); all > hostRings && got > firstRing {
			t.Errorf("%d peers: %d bytes in all", c.peers, all)
		}
	}
}

// TestClaims lets both sides claim in random turns: every unit once.
func TestClaims(t *testing.T) {
	for _, n := range []int{1, unitBytes, helpBytes, 65536, 100_000, 1 << 20, 64<<20 + 5} {
		total := units(n)
		taken := make([]bool, total)
		c := ends(phasePulling, 0, total)
		for turn := 0; c.front() < c.back(); turn++ {
			var from, to uint32
			if turn%3 == 0 {
				c, from, to = c.takeBack(portion(c.back()-c.front(), total))
			} else {
				c, from, to = c.takeFront(portion(c.back()-c.front(), total))
			}
			if from >= to {
				t.Fatalf("%d bytes: nothing claimed of %d-%d", n, c.front(), c.back())
			}
			for u := from; u < to; u++ {
				if taken[u] {
					t.Fatalf("%d bytes: unit %d claimed twice", n, u)
				}
				taken[u] = true
			}
		}
		if c.closed().phase() != phaseClosed || c.closed().front() != c.front() {
			t.Errorf("%d bytes: closing changes the ends", n)
		}
		for u, done := range taken {
			if !done {
				t.Fatalf("%d bytes: unit %d never claimed", n, u)
			}
		}
	}
}

// What a cell says is what is read, whether it was expected or not.
func TestRingPayload(t *testing.T) {
	in := inbox{mem: make([]byte, 1024)}
	for i := range in.mem {
		in.mem[i] = byte(i)
	}
	for i, c := range []struct {
		offset, n uint32
		expected  bool
		wrong     bool
	}{
		{0, 100, false, false},
		{128, 100, true, false},
		{256, 100, true, false},
		{384, 30, false, false}, // shorter
		{448, 30, true, false},
		{960, 64, false, false},
		{1024, 64, true, true}, // expected, but there is no such memory
		{0, 64, false, false},
		{64, 961, false, true},
		{64, 960, false, false},
		{1<<32 - 64, 1<<32 - 1, false, true},
		{0, 0, false, false},
	} {
		var from cell
		from[5] = span(c.offset, c.n)
		if got := in.expected == from[5]; got != c.expected {
			t.Errorf("payload %d: expected is %v", i, got)
		}
		payload, err := in.ringPayload(&from)
		switch {
		case (err != nil) != c.wrong:
			t.Errorf("payload %d: %v", i, err)
		case err == nil && (len(payload) != int(c.n) || c.n > 0 && &payload[0] != &in.mem[c.offset]):
			t.Errorf("payload %d: others", i)
		}
	}
}
