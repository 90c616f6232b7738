package collective

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// slabs counts this process's mappings of memory from mpi.Alloc, its own and its peers',
// and the descriptors that keep such memory.
func slabs() (int, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	n := strings.Count(string(maps), "fisterra-slab")
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.Contains(to, "fisterra-slab") { // else the listing's own
			n++
		}
	}
	return n, nil
}

// An arena goes with its communicator, or with the world.
func TestFreeReleasesTheArena(t *testing.T) {
	const size, communicators = 3, 40
	before, err := slabs()
	if err != nil {
		t.Fatal(err)
	}
	overSharedMemory(t, size, func(ctx context.Context, c *mpi.Comm) error {
		use := func(c *mpi.Comm) error {
			for i := range arenaAfter + 4 {
				v := []int{1}
				if err := Allreduce(ctx, c, v, v, Sum); err != nil {
					return err
				}
				if v[0] != size {
					return fmt.Errorf("%s: allreduce %d made %d", c.Name(), i, v[0])
				}
			}
			if stateOf(c).arena.Load() == nil {
				return fmt.Errorf("%s has no arena", c.Name())
			}
			return nil
		}
		// All ranks' memory at a moment when no rank makes or frees any.
		count := func() (int, error) {
			if err := Barrier(ctx, c); err != nil {
				return 0, err
			}
			n, err := slabs()
			if err == nil {
				err = Barrier(ctx, c)
			}
			return n, err
		}
		if err := use(c); err != nil {
			return err
		}
		first, err := count()
		if err != nil {
			return err
		}
		if want := size * (size + 1); first != before+want { // a mapping in each rank, and its descriptor
			return fmt.Errorf("an arena of %d ranks has %d mappings and descriptors, want %d", size, first-before, want)
		}
		for range communicators {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			if err := use(d); err != nil {
				return err
			}
			d.Free()
			if err := within(Barrier(ctx, d), mpi.ErrClosed); err != nil {
				return err
			}
		}
		last, err := count()
		if err == nil && last != first {
			err = fmt.Errorf("%d mappings and descriptors after %d communicators, %d before", last, communicators, first)
		}
		return err
	})
	if after, err := slabs(); err != nil || after != before {
		t.Errorf("%d mappings and descriptors after the world, %d before: %v", after, before, err)
	}
}
