package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// What a measurement makes for itself goes with it.
func TestMeasureModelFreesItsCommunicators(t *testing.T) {
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
		// Of the communicators only the world's has memory for collectives, all as much.
		count := func() (map[int64]int, error) {
			if err := barrier(ctx, c); err != nil {
				return nil, err
			}
			n, err := slabs()
			if err != nil {
				return nil, err
			}
			return n, barrier(ctx, c)
		}
		if err := meet(ctx, c); err != nil {
			return err
		}
		before, err := count()
		if err != nil {
			return err
		}
		if m, err := measureModel(ctx, c, "test", 10*time.Millisecond, []int{8}, 1); err != nil || len(m.Pieces) != 1 || len(m.Given) != 1 {
			return fmt.Errorf("%+v, %w", m, err)
		}
		after, err := count()
		if err != nil {
			return err
		}
		for nBytes, n := range before {
			if after[nBytes] != n {
				return fmt.Errorf("%d pieces of %d B of shared memory are left, want %d as before", after[nBytes], nBytes, n)
			}
		}
		if len(before) == 0 {
			return fmt.Errorf("the world has no memory for collectives")
		}
		return nil
	})
}

// What a turn costs is a figure of its own, unless the pair that is measured takes turns. A pair that need not is chosen.
func TestTurnsAreCountedOnce(t *testing.T) {
	const pair, all = 1.0, 3.0 // seconds for a meeting of the two, and of all
	for _, k := range []struct {
		name                  string
		processors            []string
		cross, turns, combine float64
	}{
		{"two on one", []string{"1", "1"}, all, 0, 2},
		{"four on one", []string{"1", "1", "1", "1"}, all, 0, 2},
		{"four on two, bound", []string{"1", "1", "2", "2"}, pair, all - pair, 1},
		{"four on two", []string{"3", "3", "3", "3"}, pair, all - pair, 1},
	} {
		mpitest.Together(t, mpitest.BoundWorlds(t, k.processors...), func(ctx context.Context, c *mpi.Comm) error {
			s, err := newSurvey(ctx, c, k.name, time.Millisecond, []int{8})
			if err != nil {
				return err
			}
			for i := range s.gauges {
				s.gauges[i].best = pair
			}
			s.gauges[len(s.gauges)-1].best = all
			m, err := s.model(ctx)
			if err != nil {
				return err
			}
			if err := s.end(); err != nil {
				return err
			}
			if m.Cross != k.cross || m.Switch != k.turns || m.Combine.At(8) != k.combine {
				return fmt.Errorf("%s: %g s to meet, %g s more for a turn, %g s to combine; want %g, %g and %g", k.name,
					m.Cross, m.Switch, m.Combine.At(8), k.cross, k.turns, k.combine)
			}
			return nil
		})
	}
}

// slabs counts the descriptors of this process that keep memory from mpi.Alloc, by its length.
func slabs() (map[int64]int, error) {
	fds, err := filepath.Glob("/proc/self/fd/*")
	n := map[int64]int{}
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if err != nil || !strings.Contains(to, "fisterra-slab") {
			continue // or closed meanwhile
		}
		if s, err := os.Stat(fd); err == nil {
			n[s.Size()]++
		}
	}
	return n, err
}

// A curve of the default model, which all ranks of a process share, is left as it is.
func TestAscendingLeavesItsArgument(t *testing.T) {
	given := plan.Curve{{Bytes: 0, Seconds: 2}, {Bytes: 8, Seconds: 1}, {Bytes: 64, Seconds: 3}}
	before := slices.Clone(given)
	if got, want := ascending(given), (plan.Curve{{Bytes: 0, Seconds: 1}, {Bytes: 8, Seconds: 1}, {Bytes: 64, Seconds: 3}}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if !slices.Equal(given, before) {
		t.Errorf("the argument is %v now", given)
	}
}
