package transporttest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

func dataSizes() []int {
	return []int{
		1, 2, 63, 64, 65, 4095, 4096, 4097, 8191, 8192, 8193, 16<<10 - 1, 16<<10 + 1, 32 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1,
		128<<10 - 1, 128 << 10, 128<<10 + 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 8<<20 + 13, 0, 5,
	}
}

// testData sends each size alone, from memory that is overwritten as soon as
// the provider has given it back.
func testData(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	w.each(func(m *member) error {
		for i, n := range dataSizes() {
			token := uint64(i + 1)
			if m.rank == 0 {
				buf := bytes.Clone(pattern(token, n))
				if err := m.sendFrom(1, transport.Header{Kind: transport.Data, Bytes: uint64(n), Token: token}, buf, token); err != nil {
					return err
				}
				if err := m.done(token); err != nil {
					return fmt.Errorf("%d B: completed with %w", n, err)
				}
				clear(buf)
				if err := m.nextFrom(1, transport.Header{Kind: kindNote, Token: token}, nil); err != nil {
					return err
				}
				continue
			}
			p := &placement{buf: make([]byte, n), discard: -1}
			m.expect(0, token, p)
			if err := m.arrived(token); err != nil {
				return err
			}
			if want := pattern(token, n); !bytes.Equal(p.buf, want) {
				return fmt.Errorf("%d B: %s", n, difference(p.buf, want))
			}
			if err := m.send(0, transport.Header{Kind: kindNote, Token: token}, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// testDataCrossing sends large payloads both ways at once: nobody may wait
// for the other to take something first.
func testDataCrossing(t *testing.T, factory Factory) {
	const count = 4
	w := open(t, factory, 2)
	w.each(func(m *member) error {
		return exchange(m, 1-m.rank, count, func(i int) int { return 3<<20 + 1000*i })
	})
}

// testManyOutstanding has hundreds of sends under way at once.
func testManyOutstanding(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	w.each(func(m *member) error {
		return exchange(m, 1-m.rank, 500, func(i int) int { return (i * 7919) % (40 << 10) })
	})
}

// exchange sends count Data messages to a peer, and receives as many.
func exchange(m *member, peer, count int, size func(int) int) error {
	for i := range count {
		m.expect(peer, uint64(i+1), &placement{buf: make([]byte, size(i)), discard: -1})
	}
	for i := range count {
		h := transport.Header{Kind: transport.Data, Bytes: uint64(size(i)), Token: uint64(i + 1)}
		if err := m.sendFrom(peer, h, pattern(uint64(i+m.rank), size(i)), uint64(i)); err != nil {
			return err
		}
	}
	for i := range count {
		if err := m.done(uint64(i)); err != nil {
			return fmt.Errorf("send %d of %d B: %w", i, size(i), err)
		}
	}
	for i := range count {
		p := m.places[uint64(i+1)]
		if err := m.arrived(uint64(i + 1)); err != nil {
			return err
		}
		if want := pattern(uint64(i+peer), size(i)); !bytes.Equal(p.buf, want) {
			return fmt.Errorf("data %d: %s", i, difference(p.buf, want))
		}
	}
	return nil
}

// testShortPlaces offers the provider little room at a time.
func testShortPlaces(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	steps := []int{1000, 4096, 65537, 1, 13}
	sizes := []int{100_001, 1 << 20, 3<<20 + 7, 300, 5000}
	for i, n := range sizes {
		w.members[1].expect(0, uint64(i+1), &placement{buf: make([]byte, n), step: steps[i], discard: -1})
	}
	w.each(func(m *member) error {
		for i, n := range sizes {
			token := uint64(i + 1)
			if m.rank == 0 {
				if err := m.sendFrom(1, transport.Header{Kind: transport.Data, Token: token}, pattern(token, n), token); err != nil {
					return err
				}
				if err := m.done(token); err != nil {
					return err
				}
				continue
			}
			p := m.places[token]
			if err := m.arrived(token); err != nil {
				return err
			}
			if want := pattern(token, n); !bytes.Equal(p.buf, want) {
				return fmt.Errorf("%d B by %d: %s", n, steps[i], difference(p.buf, want))
			}
		}
		return nil
	})
}

// testDiscard gives receives up, at once or in the middle; what follows is
// not disturbed.
func testDiscard(t *testing.T, factory Factory) {
	const n = 1 << 20
	w := open(t, factory, 2)
	points := []int{0, 1, 5000, n / 2, n - 1}
	for i, at := range points {
		w.members[1].expect(0, uint64(i+1), &placement{buf: make([]byte, n), step: 3000, discard: at})
	}
	w.each(func(m *member) error {
		for i, at := range points {
			token := uint64(i + 1)
			after := transport.Header{Kind: kindNote, Tag: int32(i)}
			if m.rank == 0 {
				if err := m.sendFrom(1, transport.Header{Kind: transport.Data, Token: token}, pattern(token, n), token); err != nil {
					return err
				}
				if err := m.send(1, after, pattern(token, 50)); err != nil {
					return err
				}
				// Discarded is delivered as far as the sender is concerned.
				if err := m.done(token); err != nil {
					return fmt.Errorf("discarded at %d: %w", at, err)
				}
				continue
			}
			p := m.places[token]
			if err := m.nextFrom(0, after, pattern(token, 50)); err != nil {
				return err
			}
			if want := pattern(token, n); !bytes.Equal(p.buf[:at], want[:at]) {
				return fmt.Errorf("discarded at %d: %s", at, difference(p.buf[:at], want[:at]))
			}
			if !bytes.Equal(p.buf[at:], make([]byte, n-at)) {
				return fmt.Errorf("discarded at %d: bytes beyond it were written", at)
			}
		}
		return nil
	})
}

// testAbandon takes memory back in all stages of a send. Whatever is still
// delivered is the message's, never what the memory holds after Complete.
func testAbandon(t *testing.T, factory Factory) {
	const n = 6 << 20
	w := open(t, factory, 2)
	for _, polls := range []int{0, 1, 5, 50} {
		begin := make(chan struct{})
		token := uint64(polls + 1)
		w.each(func(m *member) error {
			if m.rank == 0 {
				buf := bytes.Clone(pattern(token, n))
				err := m.sendFrom(1, transport.Header{Kind: transport.Data, Token: token}, buf, token)
				for range polls {
					m.Provider.Poll(m)
				}
				m.Provider.Abandon(token)
				m.Provider.Abandon(token) // once more is nothing
				for range 100 {
					m.Provider.Poll(m)
				}
				early := m.has(token)
				if early {
					clear(buf)
				}
				close(begin)
				if err != nil {
					return err
				}
				_ = m.done(token) // delivered or not: both are right
				clear(buf)
				m.Provider.Abandon(token) // after completion: nothing
				return m.send(1, transport.Header{Kind: kindNote, Token: token}, pattern(token, 10))
			}
			m.Lock.Unlock()
			<-begin
			m.Lock.Lock()
			p := &placement{buf: make([]byte, n), step: 10_000, discard: -1}
			m.expect(0, token, p)
			if err := m.nextFrom(0, transport.Header{Kind: kindNote, Token: token}, pattern(token, 10)); err != nil {
				return err
			}
			want := pattern(token, n)
			upTo := 0 // bytes that the provider certainly wrote: all before the last it asked for
			if m.placed[token] > 0 {
				upTo = n
			} else if p.next > p.step {
				upTo = p.next - p.step
			}
			if !bytes.Equal(p.buf[:upTo], want[:upTo]) {
				return fmt.Errorf("abandoned after %d polls: %s", polls, difference(p.buf[:upTo], want[:upTo]))
			}
			return nil
		})
		clear(w.members[1].places)
	}
}

// testAbandonReading takes memory back while the receiver is reading it.
func testAbandonReading(t *testing.T, factory Factory) {
	const n, rounds = 4 << 20, 40
	w := open(t, factory, 2)
	for i := range rounds {
		w.members[1].expect(0, uint64(i+1), &placement{buf: make([]byte, n), discard: -1})
	}
	w.each(func(m *member) error {
		for i := range rounds {
			token := uint64(i + 1)
			ready := transport.Header{Kind: kindNote, Tag: 1, Token: token}
			over := transport.Header{Kind: kindNote, Tag: 2, Token: token}
			if m.rank == 0 {
				buf := bytes.Clone(pattern(token, n))
				if err := m.sendFrom(1, transport.Header{Kind: transport.Data, Token: token}, buf, token); err != nil {
					return err
				}
				// The receiver is known to be about to read; how far it gets differs.
				if err := m.nextFrom(1, ready, nil); err != nil {
					return err
				}
				for range i * 5 {
					m.Provider.Poll(m)
				}
				m.Provider.Abandon(token)
				_ = m.done(token) // delivered or not: both are right
				clear(buf)
				if err := m.send(1, over, nil); err != nil {
					return err
				}
				continue
			}
			if err := m.send(0, ready, nil); err != nil {
				return err
			}
			if err := m.nextFrom(0, over, nil); err != nil {
				return err
			}
			// Nobody writes any more. All that was written is the message's.
			p, want := m.places[token], pattern(token, n)
			whole := m.placed[token] > 0
			for at := 0; at < n; at += 4096 {
				got := p.buf[at : at+4096]
				if !bytes.Equal(got, want[at:at+4096]) && (whole || !untouched(got, want[at:at+4096])) {
					return fmt.Errorf("round %d, placed %v: from byte %d: %s", i, whole, at, difference(got, want[at:at+4096]))
				}
			}
			delete(m.places, token)
		}
		return nil
	})
}

// untouched reports whether bytes are the beginning of what they should be,
// and zero from there on: a copy that was ended.
func untouched(got, want []byte) bool {
	n := 0
	for n < len(got) && got[n] == want[n] {
		n++
	}
	return bytes.Equal(got[n:], make([]byte, len(got)-n))
}
