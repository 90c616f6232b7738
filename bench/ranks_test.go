package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
	"github.com/fisterra-hpc/fisterra/mpi/transport/tcp"
)

var testSecret = []byte("known to the ranks of this test!")

// overSharedMemory runs f on two ranks of this process that share memory, as those of one host do.
func overSharedMemory(t *testing.T, f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	overProviders(t, func(rank int, set transport.Set) (transport.Provider, error) {
		return shm.Open(shm.Config{Rank: rank, Size: 2, Job: t.Name(), Secret: testSecret, Set: set})
	}, f)
}

// overTCP runs f on two ranks of this process with sockets between them.
func overTCP(t *testing.T, f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	overProviders(t, func(rank int, set transport.Set) (transport.Provider, error) {
		p, err := tcp.Open(tcp.Config{Rank: rank, Size: 2, Job: t.Name(), Secret: testSecret, Host: "127.0.0.1", Set: set})
		if err == nil {
			p.SetLayout([32]byte{1})
		}
		return p, err
	}, f)
}

func overProviders(t *testing.T, open func(rank int, set transport.Set) (transport.Provider, error), f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	members, assemblies, bye := make([]mpi.Member, 2), make([]mpi.Assembly, 2), mpitest.NewGoodbyes(2)
	for r := range members {
		set, err := mpi.NewSleep()
		if err != nil {
			t.Fatal(err)
		}
		p, err := open(r, set)
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
		members[r] = mpi.Member{Rank: r, Position: r, Host: "here", Addresses: map[string][]byte{p.Name(): p.Address()}}
		assemblies[r] = mpi.Assembly{Rank: r, Providers: []transport.Provider{p}, Set: set, Membership: bye, Launcher: "test"}
	}
	worlds := make([]*mpi.World, 2)
	for r, a := range assemblies {
		a.Members = members
		var err error
		if worlds[r], err = mpi.Assemble(a); err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for r, w := range worlds {
		all.Go(func() {
			if err := f(ctx, w.Comm()); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := w.Close(ctx); err != nil && !t.Failed() {
				t.Errorf("rank %d: close: %v", r, err)
			}
		})
	}
	all.Wait()
}
