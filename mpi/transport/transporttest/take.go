package transporttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// openTakers is open for two ranks that have met and whose provider is a transport.Taker; or it
// skips the test.
func openTakers(t *testing.T, factory Factory) *world {
	t.Helper()
	w := open(t, factory, 2)
	if _, ok := w.members[0].Provider.(transport.Taker); !ok {
		t.Skipf("%s has no transport.Taker", w.members[0].Provider.Name())
	}
	greet(w)
	return w
}

// take looks for the next message of peer until there is one, without Poll.
func (m *member) take(peer int, want transport.Header, buf []byte) (n int, found transport.Find, err error) {
	taker := m.Provider.(transport.Taker)
	for {
		if n, found = taker.Take(peer, &want, buf, 10); found != transport.Nothing {
			return n, found, m.fault
		}
		if m.w.failed.Load() {
			return 0, found, errOthers
		}
		if time.Now().After(m.w.until) {
			return 0, found, fmt.Errorf("%v passed, waiting for a message to take", limit)
		}
		osyield.Yield()
	}
}

// asleep sleeps until something arrives, and leaves it where it is.
func (m *member) asleep() {
	for !m.Provider.Arm() {
		m.Lock.Unlock()
		m.Set.Wait(time.Until(m.w.until))
		m.Lock.Lock()
		if time.Now().After(m.w.until) || m.w.failed.Load() {
			break // what follows says so
		}
	}
	m.Provider.Disarm()
}

// testTake: the next message is taken if it is as wanted and fits, whether the rank polls
// or sleeps until it comes. Any other is left to Poll as it was, and the buffer too.
func testTake(t *testing.T, factory Factory) {
	w := openTakers(t, factory)
	want := transport.Header{Kind: kindNote, Context: 4, Tag: -7}
	longest := w.members[0].Provider.Caps().RendezvousBytes - 1
	other := func(change func(*transport.Header)) transport.Header {
		h := want
		change(&h)
		return h
	}
	type message struct {
		what  string
		h     transport.Header
		bytes int
		room  int
		found transport.Find
	}
	messages := []message{
		{"empty", want, 0, 0, transport.Taken},
		{"empty, with room", want, 0, 9, transport.Taken},
		{"of another tag", other(func(h *transport.Header) { h.Tag = 7 }), 8, 64, transport.Other},
		{"of another context", other(func(h *transport.Header) { h.Context = 5 }), 8, 64, transport.Other},
		{"of another kind", other(func(h *transport.Header) { h.Kind++ }), 8, 64, transport.Other},
	}
	for _, n := range []int{8, 100} {
		messages = append(messages,
			message{"with a token", other(func(h *transport.Header) { h.Token = 1 }), n, 128, transport.Other},
			message{"with an aux", other(func(h *transport.Header) { h.Aux = 1 }), n, 128, transport.Other})
	}
	for n := 1; n <= longest; n = min(3*n+1, max(longest, n+1)) {
		messages = append(messages,
			message{"that just fits", want, n, n, transport.Taken},
			message{"with room", want, n, n + 100, transport.Taken},
			message{"too long", want, n, n - 1, transport.Other})
	}
	w.each(func(m *member) error {
		for i, k := range messages {
			payload := pattern(uint64(i), k.bytes)
			k.h.Bytes = uint64(k.bytes)
			if m.rank == 0 {
				if _, err := m.next("the receiver is ready"); err != nil {
					return err
				}
				if err := m.send(1, k.h, payload); err != nil {
					return err
				}
				continue
			}
			err := func() error {
				before := pattern(99, k.room)
				buf := bytes.Clone(before)
				if _, found := m.Provider.(transport.Taker).Take(0, &want, buf, 3); found != transport.Nothing {
					return fmt.Errorf("found %d before it was sent", found)
				}
				if err := m.send(0, transport.Header{Kind: kindNote}, nil); err != nil {
					return err
				}
				if i%2 == 1 {
					m.asleep()
				}
				n, found, err := m.take(0, want, buf)
				switch {
				case err != nil:
					return err
				case found != k.found:
					return fmt.Errorf("found %d, want %d", found, k.found)
				case found == transport.Other && !bytes.Equal(buf, before):
					return fmt.Errorf("not taken, but the buffer: %s", difference(buf, before))
				case found == transport.Other:
					return m.nextFrom(0, k.h, payload)
				case n != k.bytes || !bytes.Equal(buf[:n], payload) || !bytes.Equal(buf[n:], before[n:]):
					return fmt.Errorf("%d B taken, %d sent: %s", n, k.bytes, difference(buf[:k.bytes], payload))
				}
				return nil
			}()
			if err != nil {
				return fmt.Errorf("message %d of %d B, %s: %w", i, k.bytes, k.what, err)
			}
		}
		return nil
	})
}

// testTakeOrder takes some of the messages and polls for the others: together they come in the
// order in which they were sent.
func testTakeOrder(t *testing.T, factory Factory) {
	w := openTakers(t, factory)
	const count, most = 20_000, 300
	r := rand.New(rand.NewPCG(5, 6))
	headers := make([]transport.Header, count)
	for i := range headers {
		if i == 0 || r.IntN(6) == 0 { // most are like the one before
			headers[i] = transport.Header{Kind: kindNote, Tag: int32(r.IntN(3) / 2), Bytes: []uint64{8, 8, 20, most}[r.IntN(4)]}
			continue
		}
		headers[i] = headers[i-1]
	}
	w.each(func(m *member) error {
		payload := make([]byte, most)
		if m.rank == 0 {
			for i, h := range headers {
				binary.NativeEndian.PutUint64(payload, uint64(i))
				if err := m.send(1, h, payload[:h.Bytes]); err != nil {
					return err
				}
			}
			return nil
		}
		want := transport.Header{Kind: kindNote}
		taken := 0
		for i := 0; i < count; {
			n, found, err := m.take(0, want, payload)
			if err != nil {
				return err
			}
			if found == transport.Taken {
				if at := binary.NativeEndian.Uint64(payload); n != int(headers[i].Bytes) || at != uint64(i) || headers[i].Tag != want.Tag {
					return fmt.Errorf("message %d was taken in the place of %d", at, i)
				}
				i++
				taken++
				continue
			}
			if err := m.wait("what is not to be taken", func() bool { return len(m.inbox) > 0 }); err != nil {
				return err
			}
			for ; len(m.inbox) > 0; i++ { // Poll may go on behind it
				got := m.inbox[0]
				m.inbox = m.inbox[1:]
				if at := binary.NativeEndian.Uint64(got.payload); at != uint64(i) || got.header != headers[i] {
					return fmt.Errorf("message %d came in the place of %d", at, i)
				}
			}
		}
		if taken == 0 {
			return fmt.Errorf("none of %d messages was taken", count)
		}
		return nil
	})
}

// testTakeCredit: a sender does not run out of room for a receiver that takes and never polls.
func testTakeCredit(t *testing.T, factory Factory) {
	w := openTakers(t, factory)
	const count = 20_000
	size := min(3000, w.members[0].Provider.Caps().RendezvousBytes-1)
	h := transport.Header{Kind: kindNote, Context: 1, Tag: 2, Bytes: uint64(size)}
	payload := pattern(3, size)
	w.each(func(m *member) error {
		buf := make([]byte, size)
		for i := range count {
			if m.rank == 0 {
				if err := m.send(1, h, payload); err != nil {
					return fmt.Errorf("message %d: %w", i, err)
				}
				continue
			}
			n, found, err := m.take(0, h, buf)
			if err != nil || found != transport.Taken || !bytes.Equal(buf[:n], payload) {
				return fmt.Errorf("message %d: found %d, %d B, %w", i, found, n, err)
			}
		}
		return nil
	})
}
