package mpitest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
	"github.com/fisterra-hpc/fisterra/mpi/transport/tcp"
)

// opener opens the provider of one rank of a world of n in this process.
type opener func(t *testing.T, rank, n int, set transport.Set) (transport.Provider, error)

var jobSecret = []byte("known to the ranks of this test!")

func openShm(t *testing.T, rank, n int, set transport.Set) (transport.Provider, error) {
	return shm.Open(shm.Config{Rank: rank, Size: n, Job: t.Name(), Secret: jobSecret, Set: set})
}

func openShmOneCopy(t *testing.T, rank, n int, set transport.Set) (transport.Provider, error) {
	return shm.Open(shm.Config{Rank: rank, Size: n, Job: t.Name(), Secret: jobSecret, Set: set, Copies: 1})
}

func openTCP(t *testing.T, rank, n int, set transport.Set) (transport.Provider, error) {
	p, err := tcp.Open(tcp.Config{Rank: rank, Size: n, Job: t.Name(), Secret: jobSecret, Host: "127.0.0.1", Set: set})
	if err == nil {
		p.SetLayout([32]byte{1})
	}
	return p, err
}

// over is a Runner whose worlds stand on a real provider.
func over(open opener) Runner {
	return func(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm) error) {
		t.Helper()
		members := make([]mpi.Member, n)
		providers := make([]transport.Provider, n)
		sets := make([]*mpi.Sleep, n)
		for r := range n {
			var err error
			if sets[r], err = mpi.NewSleep(); err != nil {
				t.Fatal(err)
			}
			p, err := open(t, r, n, sets[r])
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
			providers[r] = p
			members[r] = mpi.Member{Rank: r, Position: r, Host: "here", Addresses: map[string][]byte{p.Name(): p.Address()}}
		}
		bye := NewGoodbyes(n)
		worlds := make([]*mpi.World, n)
		for r := range n {
			w, err := mpi.Assemble(mpi.Assembly{Rank: r, Members: members, Providers: providers[r : r+1], Set: sets[r], Membership: bye, Launcher: "test"})
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
			worlds[r] = w
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for r, w := range worlds {
			all.Go(func() {
				if err := f(ctx, w.Comm()); err != nil {
					t.Errorf("rank %d: %v", r, err)
					cancel()
				}
				if err := closeWorld(ctx, w); err != nil && !t.Failed() {
					t.Errorf("rank %d: close: %v", r, err)
				}
			})
		}
		all.Wait()
	}
}

func TestConformanceShm(t *testing.T) { Conformance(t, over(openShm)) }

// Large messages go by one copy wherever the kernel allows it.
func TestConformanceShmOneCopy(t *testing.T) { Conformance(t, over(openShmOneCopy)) }

func TestConformanceTCP(t *testing.T) { Conformance(t, over(openTCP)) }

func TestShmSoak(t *testing.T) { Soak(t, 4, over(openShm)) }

func TestShmOneCopySoak(t *testing.T) { Soak(t, 4, over(openShmOneCopy)) }

func TestTCPSoak(t *testing.T) { Soak(t, 4, over(openTCP)) }
