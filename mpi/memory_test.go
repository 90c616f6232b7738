package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

func TestAllocRefusals(t *testing.T) {
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 1), func(_ context.Context, c *mpi.Comm) error {
		if _, err := mpi.Alloc[byte](c, -1); !errors.Is(err, mpi.ErrArgument) {
			return fmt.Errorf("a negative length: %w", err)
		}
		if _, err := mpi.Alloc[float64](c, 1<<52); err == nil {
			return errors.New("32 PiB were allocated")
		}
		empty, err := mpi.Alloc[int](c, 0)
		if err != nil || len(empty) != 0 {
			return fmt.Errorf("nothing: %v, %v", empty, err)
		}
		buf, err := mpi.Alloc[uint16](c, 12345)
		if err != nil {
			return err
		}
		for i, v := range buf {
			if v != 0 {
				return fmt.Errorf("element %d is %d", i, v)
			}
		}
		if err := mpi.Free(c, buf); err != nil {
			return err
		}
		if err := mpi.Free(c, empty); err != nil {
			return err
		}
		if err := mpi.Free(c, make([]int, 5)); !errors.Is(err, mpi.ErrArgument) {
			return fmt.Errorf("heap memory: %w", err)
		}
		return nil
	})
}
