package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// die ends a rank without a goodbye. Its lock is held.
func (m *member) die() {
	m.closed = true
	m.Lock.Unlock()
	defer m.Lock.Lock()
	if m.Break != nil {
		m.Break()
		return
	}
	if err := m.Provider.Close(); err != nil {
		m.breach("Close: %v", err)
	}
}

// sees waits for the loss of a peer, and then for sends to it to be Gone.
func (m *member) sees(peer int) error {
	if err := m.wait(fmt.Sprintf("the loss of rank %d", peer), func() bool { return m.lost[peer] != nil }); err != nil {
		return err
	}
	h := transport.Header{Kind: kindNote}
	if out := m.Provider.Send(peer, &h, nil); out != transport.Gone {
		return fmt.Errorf("sending to the lost rank %d: outcome %d, want Gone", peer, out)
	}
	if out := m.Provider.SendFrom(peer, &h, []byte("x"), 77); out != transport.Gone {
		return fmt.Errorf("sending from memory to the lost rank %d: outcome %d, want Gone", peer, out)
	}
	return nil
}

// testLost ends rank 2: the others hear of it once, and go on without it.
func testLost(t *testing.T, factory Factory) {
	w := open(t, factory, 4)
	greet(w)
	w.each(func(m *member) error {
		if m.rank == 2 {
			m.die()
			return nil
		}
		if err := m.sees(2); err != nil {
			return err
		}
		for _, peer := range []int{0, 1, 3} {
			if peer == m.rank {
				continue
			}
			if err := m.send(peer, transport.Header{Kind: kindNote, Tag: 1}, pattern(5, 1000)); err != nil {
				return err
			}
		}
		for range 2 {
			r, err := m.next("a message of a survivor")
			if err != nil {
				return err
			}
			if !bytes.Equal(r.payload, pattern(5, 1000)) {
				return fmt.Errorf("from rank %d: %s", r.peer, difference(r.payload, pattern(5, 1000)))
			}
		}
		if len(m.lost) != 1 {
			return fmt.Errorf("lost %v, want rank 2 only", m.lost)
		}
		return nil
	})
	if again := w.members[0]; again != nil {
		again.Lock.Lock()
		again.Provider.Detach(2) // of a lost peer: nothing
		again.Provider.Poll(again)
		again.Lock.Unlock()
		if again.fault != nil {
			t.Error(again.fault)
		}
	}
}

// testLostInFlight ends a rank while memory is lent to messages for it, and
// while messages of its own are half read. Operations complete, before the loss is
// reported, and the memory is ours again.
func testLostInFlight(t *testing.T, factory Factory) {
	const n = 8 << 20
	w := open(t, factory, 3)
	greet(w)
	w.each(func(m *member) error {
		switch m.rank {
		case 2:
			// Reads some of what rank 0 sends, and dies.
			m.expect(0, 1, &placement{buf: make([]byte, n), step: 1000, discard: -1})
			if err := m.wait("some bytes of rank 0's", func() bool { return m.places[1].next > 0 }); err != nil {
				return err
			}
			m.die()
			return nil
		case 0:
			bufs := [][]byte{bytes.Clone(pattern(1, n)), bytes.Clone(pattern(2, n))}
			for i, buf := range bufs {
				if err := m.sendFrom(2, transport.Header{Kind: transport.Data, Token: uint64(i + 1)}, buf, uint64(i+1)); err != nil {
					return err
				}
			}
			m.onLost = func(int) { // one Poll may report both
				if !m.has(1) || !m.has(2) {
					m.breach("rank 2 was reported lost before the sends to it completed: 1 %v, 2 %v", m.has(1), m.has(2))
				}
			}
			if err := m.wait("the loss of rank 2", func() bool { return m.lost[2] != nil }); err != nil {
				return err
			}
			for _, buf := range bufs {
				clear(buf)
			}
			if err := m.completed[2]; !errors.Is(err, transport.ErrGone) {
				return fmt.Errorf("the send that rank 2 never read completed with %v, want %w", err, transport.ErrGone)
			}
			return m.sees(2)
		default:
			return m.sees(2)
		}
	})
}

// testFlushOnClose: what was accepted before Close arrives, then the loss.
func testFlushOnClose(t *testing.T, factory Factory) {
	const count, size = 50, 3000
	w := open(t, factory, 2)
	size0 := min(size, w.members[0].Provider.Caps().EagerBytes)
	w.each(func(m *member) error {
		if m.rank == 0 {
			for i := range count {
				if err := m.send(1, transport.Header{Kind: kindNote, Tag: int32(i)}, pattern(uint64(i), size0)); err != nil {
					return err
				}
			}
			m.closed = true
			m.Lock.Unlock()
			defer m.Lock.Lock()
			return m.Provider.Close()
		}
		for i := range count {
			if err := m.nextFrom(0, transport.Header{Kind: kindNote, Tag: int32(i)}, pattern(uint64(i), size0)); err != nil {
				return err
			}
		}
		return m.sees(0)
	})
}

// testDetach says goodbye: nobody reports a loss. As the engine does, a rank
// detaches from inside Message if the peer's goodbye is the second of the two.
func testDetach(t *testing.T, factory Factory) {
	w := open(t, factory, 3)
	greet(w)
	farewell := transport.Header{Kind: 50}
	w.each(func(m *member) error {
		// Ranks 0 and 1 part. Rank 2 stays with both.
		if m.rank < 2 {
			peer, heard, parted := 1-m.rank, false, false
			said := false
			part := func() {
				if said && heard && !parted {
					parted = true
					m.Provider.Detach(peer)
					m.Provider.Detach(peer) // once more is nothing
				}
			}
			m.onMessage = func(from int, h *transport.Header, payload []byte) {
				if h.Kind == farewell.Kind && from == peer {
					heard = true
					part()
					return
				}
				m.inbox = append(m.inbox, received{from, *h, bytes.Clone(payload)})
			}
			if err := m.send(peer, farewell, nil); err != nil {
				return err
			}
			said = true
			part()
			if err := m.wait("the peer's goodbye", func() bool { return parted }); err != nil {
				return err
			}
			h := transport.Header{Kind: kindNote}
			if out := m.Provider.Send(peer, &h, nil); out != transport.Gone {
				return fmt.Errorf("sending after Detach: outcome %d, want Gone", out)
			}
			if err := m.send(2, transport.Header{Kind: kindNote, Tag: 3}, pattern(3, 500)); err != nil {
				return err
			}
			return m.nextFrom(2, transport.Header{Kind: kindNote, Tag: 4}, pattern(4, 500))
		}
		for range 2 {
			r, err := m.next("a message after the parting")
			if err != nil {
				return err
			}
			if err := m.send(r.peer, transport.Header{Kind: kindNote, Tag: 4}, pattern(4, 500)); err != nil {
				return err
			}
		}
		return nil
	})
	// Time for a loss that would be wrong to come.
	for _, m := range w.members {
		m.Lock.Lock()
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
			if m.Provider.Poll(m) == 0 {
				m.Lock.Unlock()
				runtime.Gosched()
				m.Lock.Lock()
			}
		}
		if m.fault != nil || len(m.lost) > 0 {
			t.Errorf("rank %d: lost %v after a goodbye, %v", m.rank, m.lost, m.fault)
		}
		m.Lock.Unlock()
	}
}

// testDetachInFlight detaches a peer that has yet to read lent memory. The
// memory is ours again although that peer does nothing.
func testDetachInFlight(t *testing.T, factory Factory) {
	const n = 8 << 20
	w := open(t, factory, 2)
	greet(w)
	back := make(chan struct{})
	w.each(func(m *member) error {
		if m.rank == 1 {
			m.Lock.Unlock()
			<-back
			m.Lock.Lock()
			// What it still gets is the beginning of the message, if anything.
			m.expect(0, 1, &placement{buf: make([]byte, n), step: 1 << 16, discard: -1})
			return nil
		}
		defer close(back)
		buf := bytes.Clone(pattern(1, n))
		if err := m.sendFrom(1, transport.Header{Kind: transport.Data, Token: 1}, buf, 1); err != nil {
			return err
		}
		m.Provider.Detach(1)
		if err := m.wait("the completion of a send to a detached rank", func() bool { return m.has(1) }); err != nil {
			return err
		}
		clear(buf)
		if m.completed[1] == nil {
			return fmt.Errorf("a send that the detached rank never read completed without an error")
		}
		if m.lost[1] != nil {
			return fmt.Errorf("a detached rank was reported lost: %v", m.lost[1])
		}
		return nil
	})
	m := w.members[1]
	if got := m.places[1].buf; m.placed[1] > 0 || !untouched(got, pattern(1, n)) {
		t.Errorf("what was detached in flight arrived %d times, with other bytes than it had: %v", m.placed[1], !untouched(got, pattern(1, n)))
	}
}

// testNothingLeft counts goroutines and descriptors after everything is closed.
func testNothingLeft(t *testing.T, factory Factory) {
	factoryOnce := func() {
		t.Run("world", func(t *testing.T) {
			w := open(t, factory, 4)
			greet(w)
			w.each(func(m *member) error {
				return exchange(m, m.rank^1, 3, func(int) int { return 300 << 10 })
			})
			w.close()
			for _, m := range w.members {
				if m.Set != nil && m.Set.Watched() > 0 {
					t.Errorf("rank %d: %d descriptors still in the Set after Close", m.rank, m.Set.Watched())
				}
			}
		})
	}
	factoryOnce() // what is made once for the process is made now
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	factoryOnce()
	// A goroutine that has been told to end may need a moment to, and has descriptors until then.
	for end := time.Now().Add(limit); (runtime.NumGoroutine() > goroutines || descriptors(t) > files) && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines before, %d after:\n%s", goroutines, n, stacks[:runtime.Stack(stacks, true)])
	}
	if n := descriptors(t); n > files {
		t.Errorf("%d descriptors before, %d after", files, n)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
