package mpi_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Ranks count what they have into rank 0's memory, which takes no part, and read the sums out of it. Here they are
// goroutines; in processes, mpi.Init gives each its world.
func ExampleWindow() {
	worlds, err := mpi.Local(3, mpi.LocalOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	var ranks sync.WaitGroup
	for _, w := range worlds {
		ranks.Go(func() {
			if err := count(ctx, w.Comm()); err != nil {
				log.Fatal(err)
			}
			if err := w.Close(ctx); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	// Output: rank 2 reads [3 1 2]
}

func count(ctx context.Context, c *mpi.Comm) error {
	bins := 0 // of this rank's part
	if c.Rank() == 0 {
		bins = 3
	}
	part, err := mpi.Alloc[int64](c, bins) // which other ranks of the host reach without a message
	if err != nil {
		return err
	}
	w, err := mpi.NewWindow(ctx, c, part)
	if err != nil {
		return err
	}
	if err := w.Accumulate(ctx, 0, c.Rank(), []int64{int64(c.Rank())}, mpi.AccSum); err != nil {
		return err
	}
	if err := w.Accumulate(ctx, 0, 0, []int64{1}, mpi.AccSum); err != nil {
		return err
	}
	if err := w.Fence(ctx); err != nil { // all have counted
		return err
	}
	if c.Rank() == 2 {
		sums := make([]int64, 3)
		if err := w.Get(ctx, 0, 0, sums); err != nil {
			return err
		}
		fmt.Println("rank 2 reads", sums)
	}
	if err := w.Free(ctx); err != nil { // ends with a fence: rank 2 has read
		return err
	}
	return mpi.Free(c, part)
}
