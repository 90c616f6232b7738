package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

const (
	kindKey    transport.Kind = 41 // payload: a key
	kindPulled transport.Kind = 42
)

// memory returns a rank's transport.Memory, or skips the test.
func memory(t *testing.T, m *member) transport.Memory {
	t.Helper()
	mem, ok := m.Provider.(transport.Memory)
	if !ok {
		t.Skipf("%s has no transport.Memory", m.Provider.Name())
	}
	return mem
}

// testMemory pulls memory of all sizes, both ways at once.
func testMemory(t *testing.T, factory Factory) {
	w := open(t, factory, 2)
	memory(t, w.members[0])
	w.each(func(m *member) error {
		mem, peer := m.Provider.(transport.Memory), 1-m.rank
		for i, n := range dataSizes() {
			if n == 0 {
				continue
			}
			src := bytes.Clone(pattern(uint64(i+m.rank), n))
			key, ok := mem.Expose(peer, src)
			if err := m.send(peer, transport.Header{Kind: kindKey, Tag: int32(i)}, keyBytes(key, ok)); err != nil {
				return err
			}
			if err := m.pullFrom(mem, peer, i, n); err != nil {
				return err
			}
			if ok {
				if err := m.nextFrom(peer, transport.Header{Kind: kindPulled, Tag: int32(i)}, nil); err != nil {
					return err
				}
				if err := m.wait("Withdraw", func() bool { return mem.Withdraw(peer, key) }); err != nil {
					return err
				}
				clear(src)
			}
		}
		return nil
	})
}

func keyBytes(key transport.Key, ok bool) []byte {
	if !ok {
		return nil
	}
	return key[:]
}

// pullFrom waits for a key and pulls what it names.
func (m *member) pullFrom(mem transport.Memory, peer, round, n int) error {
	r, err := m.next("a key")
	if err != nil {
		return err
	}
	if r.header.Kind != kindKey || int(r.header.Tag) != round {
		return fmt.Errorf("got %+v, want the key of round %d", r.header, round)
	}
	if len(r.payload) == 0 {
		return nil // that memory cannot be exposed: the engine uses Data then
	}
	dst := make([]byte, n+64)
	op := uint64(1000 + round)
	err = m.offer("room to pull", func() transport.Outcome {
		return mem.Pull(peer, transport.Key(r.payload), dst[32:32+n], op)
	})
	if err != nil {
		return err
	}
	if err := m.done(op); err != nil {
		return fmt.Errorf("pull of %d B: %w", n, err)
	}
	if want := pattern(uint64(round+peer), n); !bytes.Equal(dst[32:32+n], want) {
		return fmt.Errorf("pull of %d B: %s", n, difference(dst[32:32+n], want))
	}
	if !bytes.Equal(dst[:32], make([]byte, 32)) || !bytes.Equal(dst[32+n:], make([]byte, 32)) {
		return fmt.Errorf("pull of %d B wrote beside its destination", n)
	}
	return m.send(peer, transport.Header{Kind: kindPulled, Tag: int32(round)}, nil)
}

// testWithdraw takes exposed memory back while it is being pulled. The pull completes, once. If it succeeds, it has copied
// what the memory held before Withdraw; if it fails, it does so with transport.ErrGone, unless the pulling rank gave it up
// itself.
func testWithdraw(t *testing.T, factory Factory) {
	const n = 8 << 20
	w := open(t, factory, 2)
	memory(t, w.members[0])
	for round, polls := range []int{-1, 0, 1, 20} {
		w.each(func(m *member) error {
			mem := m.Provider.(transport.Memory)
			if m.rank == 0 {
				src := bytes.Clone(pattern(uint64(round), n))
				key, ok := mem.Expose(1, src)
				if !ok {
					return errors.New("ordinary memory could not be exposed")
				}
				if polls < 0 { // withdrawn before the peer hears of it
					if !mem.Withdraw(1, key) {
						return errors.New("memory that nobody was told of could not be withdrawn")
					}
					clear(src)
				}
				if err := m.send(1, transport.Header{Kind: kindKey, Tag: int32(round)}, key[:]); err != nil {
					return err
				}
				if polls < 0 {
					return nil
				}
				for range polls {
					m.Provider.Poll(m)
				}
				if err := m.wait("Withdraw", func() bool { return mem.Withdraw(1, key) }); err != nil {
					return err
				}
				clear(src)
				return nil
			}
			r, err := m.next("a key")
			if err != nil {
				return err
			}
			dst, op := make([]byte, n), uint64(round+1)
			if mem.Pull(0, transport.Key(r.payload), dst, op) != transport.Sent {
				return errors.New("the pull was not taken")
			}
			if round == 3 {
				m.Provider.Abandon(op)
			}
			err = m.done(op)
			if err == nil && !bytes.Equal(dst, pattern(uint64(round), n)) {
				return fmt.Errorf("the pull succeeded with wrong bytes: %s", difference(dst, pattern(uint64(round), n)))
			}
			if err == nil && polls < 0 {
				return errors.New("memory withdrawn before was pulled")
			}
			if err != nil && round != 3 && !errors.Is(err, transport.ErrGone) {
				return fmt.Errorf("the pull of memory that was withdrawn completed with %v, want %w", err, transport.ErrGone)
			}
			return nil
		})
	}
}

// testWithdrawReading takes exposed memory back while the peer is pulling it.
func testWithdrawReading(t *testing.T, factory Factory) {
	const rounds = 200
	w := open(t, factory, 2)
	memory(t, w.members[0])
	w.each(func(m *member) error {
		mem := m.Provider.(transport.Memory)
		for i := range rounds {
			token := uint64(i + 1)
			begun := transport.Header{Kind: kindNote, Token: token}
			n := 200 << 10
			if i%10 == 0 {
				n = 4 << 20
			}
			if m.rank == 0 {
				src := bytes.Clone(pattern(token, n))
				key, ok := mem.Expose(1, src)
				if !ok {
					return errors.New("ordinary memory could not be exposed")
				}
				if err := m.send(1, transport.Header{Kind: kindKey, Token: token}, key[:]); err != nil {
					return err
				}
				if err := m.nextFrom(1, begun, nil); err != nil {
					return err
				}
				for range i {
					m.Provider.Poll(m)
				}
				if err := m.wait("Withdraw", func() bool { return mem.Withdraw(1, key) }); err != nil {
					return err
				}
				clear(src)
				continue
			}
			r, err := m.next("a key")
			if err != nil {
				return err
			}
			dst := make([]byte, n)
			if mem.Pull(0, transport.Key(r.payload), dst, token) != transport.Sent {
				return errors.New("the pull was not taken")
			}
			if err := m.send(0, begun, nil); err != nil {
				return err
			}
			switch err := m.done(token); {
			case err == nil && !bytes.Equal(dst, pattern(token, n)):
				return fmt.Errorf("round %d: the pull succeeded with wrong bytes: %s", i, difference(dst, pattern(token, n)))
			case err != nil && !errors.Is(err, transport.ErrGone):
				return fmt.Errorf("round %d: the pull completed with %v, want %w", i, err, transport.ErrGone)
			}
		}
		return nil
	})
}
