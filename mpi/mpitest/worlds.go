package mpitest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
	"github.com/fisterra-hpc/fisterra/mpi/transport/tcp"
)

// Worlds of this process over the real providers, without a launcher and without a bootstrap: who tests
// those starts processes (Processes).

var testSecret = []byte("known to the ranks of this test!")

// SharedMemoryWorlds opens n worlds that share memory, as those of one host do. Each change is
// applied to every rank's configuration.
func SharedMemoryWorlds(t testing.TB, n int, changes ...func(*shm.Config)) []*mpi.World {
	t.Helper()
	return sharedMemoryWorlds(t, make([]string, n), changes...)
}

// BoundWorlds are SharedMemoryWorlds of ranks that say that they may run on these processors, as mpi.Member has them.
func BoundWorlds(t testing.TB, processors ...string) []*mpi.World {
	t.Helper()
	return sharedMemoryWorlds(t, processors)
}

func sharedMemoryWorlds(t testing.TB, processors []string, changes ...func(*shm.Config)) []*mpi.World {
	t.Helper()
	n := len(processors)
	return worlds(t, processors, func(rank int, set transport.Set, log *slog.Logger) (transport.Provider, error) {
		cfg := shm.Config{Rank: rank, Size: n, Job: fmt.Sprint(t.Name(), n), Secret: testSecret, Set: set, Log: log}
		for _, change := range changes {
			change(&cfg)
		}
		return shm.Open(cfg)
	})
}

// TCPWorlds opens n worlds with sockets between them.
func TCPWorlds(t testing.TB, n int) []*mpi.World {
	t.Helper()
	return worlds(t, make([]string, n), func(rank int, set transport.Set, log *slog.Logger) (transport.Provider, error) {
		p, err := tcp.Open(tcp.Config{Rank: rank, Size: n, Job: fmt.Sprint(t.Name(), n), Secret: testSecret, Host: "127.0.0.1", Set: set, Log: log})
		if err == nil {
			p.SetLayout([32]byte{1})
		}
		return p, err
	})
}

// worlds opens one for each rank, of which the processors are given, "" where it does not say.
func worlds(t testing.TB, processors []string, open func(rank int, set transport.Set, log *slog.Logger) (transport.Provider, error)) []*mpi.World {
	t.Helper()
	n := len(processors)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	members, assemblies, bye := make([]mpi.Member, n), make([]mpi.Assembly, n), NewGoodbyes(n)
	for r := range n {
		set, err := mpi.NewSleep()
		if err != nil {
			t.Fatal(err)
		}
		p, err := open(r, set, log)
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
		members[r] = mpi.Member{Rank: r, Position: r, Host: "here", Processors: processors[r], Addresses: map[string][]byte{p.Name(): p.Address()}}
		assemblies[r] = mpi.Assembly{Rank: r, Providers: []transport.Provider{p}, Set: set, Membership: bye, Launcher: "test", Log: log}
	}
	all := make([]*mpi.World, n)
	for r, a := range assemblies {
		a.Members = members
		var err error
		if all[r], err = mpi.Assemble(a); err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	return all
}

// Together runs f on all ranks, each in a goroutine of its own, and closes their worlds. The context of all
// ends as soon as one has failed.
func Together(t testing.TB, worlds []*mpi.World, f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	timed, stop := context.WithTimeout(t.Context(), 2*patience())
	defer stop()
	ctx, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	var all sync.WaitGroup
	for r, w := range worlds {
		all.Go(func() {
			if err := f(ctx, w.Comm()); err != nil {
				if !errors.Is(err, errAnother) {
					t.Errorf("rank %d: %v", r, err)
				}
				cancel(fmt.Errorf("%w: rank %d: %w", errAnother, r, err))
			}
			if err := closeWorld(ctx, w); err != nil && !t.Failed() {
				t.Errorf("rank %d: close: %v", r, err)
			}
		})
	}
	all.Wait()
}
