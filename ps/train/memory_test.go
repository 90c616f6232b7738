package train

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/ps"
)

// allocated counts this process's pieces of memory from mpi.Alloc.
func allocated(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "fisterra-slab")
}

// What workers exchange lies in memory that other ranks can map, and goes back at the end.
func TestExchangedVectorsAreFromAlloc(t *testing.T) {
	before, during := allocated(t), 0
	launch(t, Config{Cluster: ps.Counts(0, 3), Mode: ps.Sync, Hidden: 8, Stop: ps.Stop{LastStep: 2}}, func(rank int, _ *fleet, cfg *Config) {
		if rank == 0 {
			cfg.Hooks = []Hook{{AfterStep: func(_ context.Context, _ Session, info StepInfo) error {
				if info.Step == 1 { // all workers have taken part in it, and none ends before the next
					during = allocated(t)
				}
				return nil
			}}}
		}
	}).fine(t)
	if want := before + 3*3; during != want { // parameters, gradient and sum of each
		t.Errorf("%d pieces during the run, want %d", during, want)
	}
	if after := allocated(t); after != before {
		t.Errorf("%d pieces after the run, %d before", after, before)
	}
}

// A run that cannot begin keeps none of its memory.
func TestRunThatCannotBeginFreesItsMemory(t *testing.T) {
	before := allocated(t)
	f := launch(t, Config{Cluster: ps.Counts(0, 3), Mode: ps.Sync, Hidden: 8}, func(rank int, _ *fleet, cfg *Config) {
		cfg.Claim = func(resume func() error) error { return resume() } // for which all wait until all are ready
		if rank == 2 {
			cfg.Data = "missing.csv"
		}
	})
	for rank, err := range f.errs {
		if err == nil {
			t.Errorf("rank %d has not failed", rank)
		}
	}
	if after := allocated(t); after != before {
		t.Errorf("%d pieces after the run, %d before", after, before)
	}
}
