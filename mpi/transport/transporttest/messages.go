package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

func testCaps(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	for _, m := range w.members {
		c := m.Provider.Caps()
		if m.Provider.Name() == "" {
			t.Error("no Name")
		}
		if c.EagerBytes < 1 || c.RendezvousBytes < 1 || c.RendezvousBytes > c.EagerBytes {
			t.Errorf("EagerBytes %d, RendezvousBytes %d: want 1 <= RendezvousBytes <= EagerBytes", c.EagerBytes, c.RendezvousBytes)
		}
		if c.CreditBytes < c.RendezvousBytes+transport.EnvelopeBytes {
			t.Errorf("CreditBytes %d: not even one message of RendezvousBytes %d fits", c.CreditBytes, c.RendezvousBytes)
		}
		if c.SizesOnly {
			t.Error("SizesOnly: the suite checks bytes")
		}
	}
}

func testBadAddress(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	m := w.members[0]
	m.Lock.Lock()
	defer m.Lock.Unlock()
	for _, address := range []string{"", "nowhere:x", "\x00\xff"} {
		if err := m.Provider.Connect(1, []byte(address)); err == nil {
			t.Errorf("Connect to the address %q succeeded", address)
		}
	}
}

func testHeader(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	headers := []transport.Header{
		{Kind: 2},
		{Kind: 255, Context: math.MaxUint32, Tag: math.MaxInt32, Bytes: math.MaxUint64, Token: math.MaxUint64, Aux: math.MaxUint64},
		{Kind: 7, Context: 1, Tag: -1, Bytes: 1 << 40, Token: 1, Aux: 2},
		{Kind: 9, Context: 1 << 31, Tag: math.MinInt32, Bytes: 3, Token: 1 << 63, Aux: 1 << 32},
	}
	r := rand.New(rand.NewPCG(7, 7))
	for len(headers) < 200 {
		headers = append(headers, transport.Header{
			Kind: transport.Kind(2 + r.IntN(254)), Context: r.Uint32(), Tag: int32(r.Uint32()),
			Bytes: r.Uint64(), Token: r.Uint64(), Aux: r.Uint64(),
		})
	}
	w.each(func(m *member) error {
		peer := 1 - m.rank
		for i, h := range headers {
			if err := m.send(peer, h, pattern(uint64(i), i%5)); err != nil {
				return err
			}
		}
		for i, h := range headers {
			if err := m.nextFrom(peer, h, pattern(uint64(i), i%5)); err != nil {
				return err
			}
		}
		return nil
	})
	data := transport.Header{Kind: transport.Data, Context: 77, Tag: -5, Bytes: 123, Token: 1 << 50, Aux: 42}
	var seen transport.Header
	sink := &headerSink{member: w.members[1], seen: &seen}
	w.each(func(m *member) error {
		if m.rank == 0 {
			if err := m.sendFrom(1, data, pattern(1, 999), 5); err != nil {
				return err
			}
			return m.done(5)
		}
		m.expect(0, data.Token, &placement{buf: make([]byte, 999), discard: -1})
		return sink.arrive(data)
	})
}

// headerSink looks at the headers that Place and Placed are given.
type headerSink struct {
	*member
	seen *transport.Header
	bad  error
}

func (s *headerSink) Place(peer int, h *transport.Header, offsetBytes, sizeBytes int) []byte {
	*s.seen = *h
	return s.member.Place(peer, h, offsetBytes, sizeBytes)
}

func (s *headerSink) Placed(peer int, h *transport.Header) {
	if *h != *s.seen {
		s.bad = fmt.Errorf("Placed with header %+v, Place with %+v", *h, *s.seen)
	}
	s.member.Placed(peer, h)
}

func (s *headerSink) arrive(want transport.Header) error {
	err := s.waitOn(s, "data", func() bool { return s.placed[want.Token] > 0 })
	if err == nil && s.bad == nil && *s.seen != want {
		err = fmt.Errorf("data header %+v, want %+v", *s.seen, want)
	}
	return errors.Join(err, s.bad)
}

// borders are lengths around those at which providers change their ways.
func borders(eagerBytes int) []int {
	sizes := []int{0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40, 48, 55, 56, 57, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000}
	for n := 1024; n <= eagerBytes; n *= 2 {
		sizes = append(sizes, n-1, n, n+1)
	}
	sizes = append(sizes, eagerBytes-1, eagerBytes)
	fit := sizes[:0]
	for _, n := range sizes {
		if n <= eagerBytes {
			fit = append(fit, n)
		}
	}
	return fit
}

func testEager(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	sizes := borders(w.members[0].Provider.Caps().EagerBytes)
	w.each(func(m *member) error {
		peer := 1 - m.rank
		buf := make([]byte, sizes[len(sizes)-1])
		for i, n := range sizes {
			copy(buf, pattern(uint64(i+peer), n))
			h := transport.Header{Kind: kindNote, Tag: int32(i), Bytes: uint64(n)}
			if err := m.send(peer, h, buf[:n]); err != nil {
				return err
			}
			clear(buf) // ours again at once
		}
		for i, n := range sizes {
			h := transport.Header{Kind: kindNote, Tag: int32(i), Bytes: uint64(n)}
			if err := m.nextFrom(peer, h, pattern(uint64(i+m.rank), n)); err != nil {
				return err
			}
		}
		return nil
	})
}

// testOrder mixes all ways of sending: messages arrive in order, and the
// payloads of Data messages begin in their place of that order.
func testOrder(t *testing.T, factory Factory) {
	const count = 3000
	w := open(t, factory, 3)
	type step struct {
		data  bool
		bytes int
	}
	r := rand.New(rand.NewPCG(3, 3))
	eager := w.members[0].Provider.Caps().EagerBytes
	plan := make([]step, count)
	for i := range plan {
		plan[i] = step{r.IntN(8) == 0, r.IntN(200)}
		if r.IntN(16) == 0 {
			plan[i].bytes = r.IntN(eager + 1)
		}
		if plan[i].data && r.IntN(4) == 0 {
			plan[i].bytes = 1 + r.IntN(200<<10)
		}
	}
	token := func(from, i int) uint64 { return uint64(from)<<32 | uint64(i) }
	w.each(func(m *member) error {
		next := make([]int, m.size)  // messages and Data begun, by sender
		order := make(map[int][]int) // indices as they arrived, by sender
		begun := 0
		note := func() {
			for ; begun < len(m.firsts); begun++ {
				from, i := int(m.firsts[begun]>>32), int(m.firsts[begun]&math.MaxUint32)
				order[from] = append(order[from], i)
			}
		}
		m.onMessage = func(peer int, h *transport.Header, payload []byte) {
			note()
			i := int(h.Token & math.MaxUint32)
			order[peer] = append(order[peer], i)
			if want := pattern(uint64(i), plan[i].bytes); !bytes.Equal(payload, want) {
				m.breach("message %d from rank %d: %s", i, peer, difference(payload, want))
			}
		}
		for from := range m.size {
			for i, s := range plan {
				if s.data && from != m.rank {
					m.expect(from, token(from, i), &placement{buf: make([]byte, s.bytes), discard: -1})
				}
			}
		}
		for i, s := range plan {
			for peer := range m.size {
				if peer == m.rank {
					continue
				}
				h := transport.Header{Kind: kindNote, Token: token(m.rank, i)}
				var err error
				if s.data {
					h.Kind = transport.Data
					err = m.sendFrom(peer, h, pattern(uint64(i), s.bytes), uint64(peer*count+i))
				} else {
					err = m.send(peer, h, pattern(uint64(i), s.bytes))
				}
				if err != nil {
					return err
				}
			}
		}
		for peer := range m.size {
			for i, s := range plan {
				if !s.data || peer == m.rank {
					continue
				}
				if err := m.done(uint64(peer*count + i)); err != nil {
					return err
				}
				if err := m.wait("data", func() bool { return m.placed[token(peer, i)] > 0 }); err != nil {
					return err
				}
				if got, want := m.places[token(peer, i)].buf, pattern(uint64(i), s.bytes); !bytes.Equal(got, want) {
					return fmt.Errorf("data %d from rank %d: %s", i, peer, difference(got, want))
				}
			}
		}
		err := m.wait("all messages", func() bool {
			note()
			for from := range next {
				next[from] = len(order[from])
				if from != m.rank && next[from] < count {
					return false
				}
			}
			return true
		})
		for from, got := range order {
			for i, g := range got {
				if g != i {
					return fmt.Errorf("from rank %d: number %d came in place %d", from, g, i)
				}
			}
		}
		return err
	})
}

// testFull sends to a rank that does not poll until the provider is full,
// and then lets it go on.
func testFull(t *testing.T, factory Factory) {
	const enough = 256 << 20
	w := open(t, factory, 2)
	full := make(chan struct{})
	total := 0
	w.each(func(m *member) error {
		size := min(8<<10, m.Provider.Caps().EagerBytes)
		if m.rank == 1 {
			m.Lock.Unlock()
			<-full
			m.Lock.Lock()
			seen := 0
			m.onMessage = func(_ int, h *transport.Header, payload []byte) {
				if int(h.Token) != seen || !bytes.Equal(payload, pattern(h.Token, size)) {
					m.breach("message %d: token %d, %s", seen, h.Token, difference(payload, pattern(h.Token, size)))
				}
				seen++
			}
			return m.wait("the last message", func() bool { return seen > total })
		}
		closed := false
		stop := func() {
			if !closed {
				closed = true
				close(full)
			}
		}
		defer stop()
		for i := 0; i*size < enough; i++ {
			h := transport.Header{Kind: kindNote, Token: uint64(i)}
			switch m.Provider.Send(1, &h, pattern(uint64(i), size)) {
			case transport.Gone:
				return errors.New("the peer is gone")
			case transport.Full:
				// A connection may have to be made first, and the kernel may
				// take more: full is what stays full.
				stays := true
				for range 200 {
					m.Provider.Poll(m)
					if m.Provider.Send(1, &h, pattern(uint64(i), size)) == transport.Sent {
						stays = false
						break
					}
				}
				if !stays {
					continue
				}
				total = i
				stop()
				return m.send(1, h, pattern(uint64(i), size))
			}
		}
		return fmt.Errorf("never Full: %d B taken for a rank that does not poll", enough)
	})
}

func testManyPeers(t *testing.T, factory Factory) {
	const n, rounds = 16, 20
	w := open(t, factory, n)
	w.each(func(m *member) error {
		seen := make([]int, n)
		total := 0
		m.onMessage = func(peer int, h *transport.Header, payload []byte) {
			if want := pattern(h.Token, 100); int(h.Tag) != seen[peer] || !bytes.Equal(payload, want) {
				m.breach("from rank %d: tag %d, want %d, %s", peer, h.Tag, seen[peer], difference(payload, want))
			}
			seen[peer]++
			total++
		}
		for round := range rounds {
			for i := 1; i < n; i++ {
				peer := (m.rank + i) % n
				token := uint64(m.rank*n + peer)
				if err := m.send(peer, transport.Header{Kind: kindNote, Tag: int32(round), Token: token}, pattern(token, 100)); err != nil {
					return err
				}
			}
			if err := m.wait("a round of messages", func() bool { return total >= (round+1)*(n-1) }); err != nil {
				return err
			}
		}
		return m.wait("the rest", func() bool { return total == rounds*(n-1) })
	})
}

func testConcurrentWorlds(t *testing.T, factory Factory) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := open(t, factory, 3)
			soak(w, uint64(i), 100)
		})
	}
}
