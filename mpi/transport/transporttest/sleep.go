package transporttest

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// testSleepPingPong sleeps before every message: one wake-up that gets lost
// and it hangs.
func testSleepPingPong(t *testing.T, factory Factory) {
	const rounds = 1000
	w := open(t, factory, 2)
	w.each(func(m *member) error {
		payload := make([]byte, 64)
		seen := 0
		m.onMessage = func(_ int, h *transport.Header, _ []byte) {
			if int(h.Token) != seen {
				m.breach("message %d: token %d", seen, h.Token)
			}
			seen++
		}
		for i := range rounds {
			if m.rank == 0 {
				if err := m.send(1, transport.Header{Kind: kindNote, Token: uint64(i)}, payload); err != nil {
					return err
				}
			}
			if err := m.wait(fmt.Sprintf("message %d", i), func() bool { return seen > i }); err != nil {
				return err
			}
			if m.rank == 1 {
				if err := m.send(0, transport.Header{Kind: kindNote, Token: uint64(i)}, payload); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// testIdle: a rank with nothing to do sleeps.
func testIdle(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	greet(w)
	for _, m := range w.members {
		m.Lock.Lock()
		wakes := 0
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); wakes++ {
			if m.Provider.Poll(m) > 0 {
				continue
			}
			if s, ok := m.Provider.(transport.Sleeper); ok {
				s.Sleep(m.Lock, s.Now().Add(time.Until(end)))
				continue
			}
			if !m.Provider.Arm() {
				m.Lock.Unlock()
				m.Set.Wait(time.Until(end))
				m.Lock.Lock()
			}
			m.Provider.Disarm()
		}
		m.Lock.Unlock()
		if wakes > 50 {
			t.Errorf("rank %d woke %d times in 200 ms with nothing to do", m.rank, wakes)
		}
	}
}

// greet has every rank send to every other, so that all connections exist.
func greet(w *world) {
	w.t.Helper()
	w.each(func(m *member) error {
		for peer := range m.size {
			if peer == m.rank {
				continue
			}
			if err := m.send(peer, transport.Header{Kind: kindNote, Token: 99}, []byte("hello")); err != nil {
				return err
			}
		}
		for range m.size - 1 {
			if _, err := m.next("a greeting"); err != nil {
				return err
			}
		}
		return nil
	})
}

// testWake ends a Sleep from another goroutine, and lets a deadline end it.
func testWake(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	m := w.members[0]
	s, ok := m.Provider.(transport.Sleeper)
	if !ok {
		t.Skipf("%s is no transport.Sleeper", m.Provider.Name())
	}
	m.Lock.Lock()
	defer m.Lock.Unlock()
	begun := time.Now()
	s.Wake()
	s.Sleep(m.Lock, s.Now().Add(limit)) // woken before it slept
	go s.Wake()
	s.Sleep(m.Lock, s.Now().Add(limit))
	go func() {
		m.Lock.Lock() // the sleeper does not hold it
		s.Wake()
		m.Lock.Unlock()
	}()
	s.Sleep(m.Lock, time.Time{})
	if took := time.Since(begun); took > limit/2 {
		t.Errorf("three sleeps that were woken took %v", took)
	}
	for deadline := s.Now().Add(20 * time.Millisecond); s.Now().Before(deadline); {
		s.Sleep(m.Lock, deadline)
	}
}

// testMallocs counts the allocations of small messages back and forth, in several stretches, of which the one with the fewest
// counts: the whole process is counted, and what else is in it may still be ending.
func testMallocs(t *testing.T, factory Factory) {
	const warm, stretches, rounds = 500, 8, 500
	w := open(t, factory, 2)
	if _, sleeper := w.members[0].Provider.(transport.Sleeper); sleeper {
		t.Skipf("%s is a simulation", w.members[0].Provider.Name())
	}
	if need.RaceDetector {
		t.Skip("the race detector allocates")
	}
	least := uint64(math.MaxUint64)
	w.each(func(m *member) error {
		c := &counter{member: m}
		payload := make([]byte, 64)
		h := &transport.Header{Kind: kindNote, Bytes: 64}
		last := 0
		came := func() bool { return c.seen >= last }
		send := func() {
			for m.Provider.Send(1-m.rank, h, payload) == transport.Full {
				m.Provider.Poll(c)
			}
		}
		trips := func(count int) error {
			for range count {
				last++
				if m.rank == 0 {
					send()
				}
				// It sleeps soon: where there are fewer processors than ranks, a rank that only polls keeps the other from
				// running.
				for tries := 0; !came(); tries++ {
					if tries < 100 {
						m.Provider.Poll(c)
						continue
					}
					if time.Now().After(m.w.until) {
						return fmt.Errorf("message %d of %d did not come", last, warm+stretches*rounds)
					}
					m.step(c, came)
				}
				if m.rank == 1 {
					send()
				}
			}
			return nil
		}
		if err := trips(warm); err != nil {
			return err
		}
		for range stretches {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := trips(rounds); err != nil {
				return err
			}
			runtime.ReadMemStats(&after)
			if m.rank == 0 {
				least = min(least, after.Mallocs-before.Mallocs)
			}
		}
		return nil
	})
	if least > rounds/50 {
		t.Errorf("%d allocations in %d round trips, want none", least, rounds)
	}
}

// counter is a sink that does not allocate.
type counter struct {
	*member
	seen int
}

func (c *counter) Message(int, *transport.Header, []byte) { c.seen++ }
