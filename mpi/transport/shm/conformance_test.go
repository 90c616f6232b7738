package shm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
	"github.com/fisterra-hpc/fisterra/mpi/transport/transporttest"
)

var secret = []byte("known to the ranks of this test!")

// worldOf opens providers that share this process.
func worldOf(change func(*shm.Config)) transporttest.Factory {
	return func(t *testing.T, n int) []transporttest.Rank {
		ranks := make([]transporttest.Rank, n)
		for i := range ranks {
			set := transporttest.NewSet(t)
			cfg := shm.Config{Rank: i, Size: n, Job: t.Name(), Secret: secret, Set: set}
			if change != nil {
				change(&cfg)
			}
			p, err := shm.Open(cfg)
			if err != nil {
				t.Fatal(fmt.Errorf("rank %d of %d: %w", i, n, err))
			}
			ranks[i] = transporttest.Rank{Provider: p, Set: set}
		}
		return ranks
	}
}

// metWorldOf is worldOf with ranks that have met, since memory cannot be
// exposed to a peer before.
func metWorldOf(change func(*shm.Config)) transporttest.Factory {
	return func(t *testing.T, n int) []transporttest.Rank {
		ranks := worldOf(change)(t, n)
		buf := make([]byte, 1)
		deadline := time.Now().Add(2 * time.Minute)
		for i, r := range ranks {
			mine := r.Provider.(*shm.Provider)
			for j, other := range ranks {
				if i == j {
					continue
				}
				if err := mine.Connect(j, other.Provider.Address()); err != nil {
					t.Fatal(err)
				}
				for {
					key, ok := mine.Expose(j, buf)
					if ok {
						mine.Withdraw(j, key)
						break
					}
					mine.Poll(nobody{t})
					if time.Now().After(deadline) {
						t.Fatalf("ranks %d and %d have not met: %q", i, j, mine.Path(j))
					}
				}
			}
		}
		return ranks
	}
}

// nobody expects nothing.
type nobody struct{ t *testing.T }

func (n nobody) Message(peer int, h *transport.Header, _ []byte) {
	n.t.Errorf("message %+v from rank %d", h, peer)
}
func (n nobody) Place(int, *transport.Header, int, int) []byte { return nil }
func (n nobody) Placed(int, *transport.Header)                 {}
func (n nobody) Complete(op uint64, err error)                 { n.t.Errorf("operation %d completed: %v", op, err) }
func (n nobody) Lost(peer int, err error)                      { n.t.Errorf("lost rank %d: %v", peer, err) }
func (n nobody) Outside(work func())                           { work() }

func TestConformance(t *testing.T) {
	transporttest.Run(t, metWorldOf(func(cfg *shm.Config) { cfg.Copies = 1 }))
}

// TestConformanceTwoCopies is the suite where ranks do not copy each other's memory.
func TestConformanceTwoCopies(t *testing.T) {
	factory := worldOf(func(cfg *shm.Config) { cfg.Copies = 2 })
	transporttest.Run(t, func(t *testing.T, n int) []transporttest.Rank {
		ranks := factory(t, n)
		for i, r := range ranks {
			ranks[i].Provider = struct { // without transport.Memory
				transport.Provider
				transport.Taker
			}{r.Provider, r.Provider.(transport.Taker)}
		}
		return ranks
	})
}

func TestSoak(t *testing.T) {
	transporttest.Soak(t, metWorldOf(func(cfg *shm.Config) { cfg.Copies = 1 }))
}
