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
