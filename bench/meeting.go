package bench

// What the ranks of a measurement tell each other beside what is measured.

import (
	"context"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
)

const (
	tagBarrier = 1000 + iota
	tagRoot
	tagMean
	tagLaps
)

// barrier is a dissemination barrier of the bench's own, so that measuring a
// collective does not depend on it (Hensgen et al. 1988).
func barrier(ctx context.Context, c *mpi.Comm) error {
	p := c.Size()
	var in, out [1]byte
	for step := 1; step < p; step *= 2 {
		if _, err := mpi.Sendrecv(ctx, c, out[:], (c.Rank()+step)%p, tagBarrier, in[:], (c.Rank()-step+p)%p, tagBarrier); err != nil {
			return err
		}
	}
	return nil
}

// fromRoot gives every rank what rank 0 has.
func fromRoot[T ~int64](ctx context.Context, c *mpi.Comm, mine T) (T, error) {
	v := []int64{int64(mine)}
	if c.Rank() != 0 {
		_, err := mpi.Recv(ctx, c, v, 0, tagRoot)
		return T(v[0]), err
	}
	for r := 1; r < c.Size(); r++ {
		if err := mpi.Send(ctx, c, v, r, tagRoot); err != nil {
			return 0, err
		}
	}
	return mine, nil
}

// toRoot collects each rank's samples at rank 0, in rank order; elsewhere it
// returns nil.
func toRoot(ctx context.Context, c *mpi.Comm, mine []float64) ([][]float64, error) {
	if c.Rank() != 0 {
		return nil, mpi.Send(ctx, c, mine, 0, tagMean)
	}
	all := [][]float64{mine}
	for r := 1; r < c.Size(); r++ {
		theirs := make([]float64, len(mine))
		if _, err := mpi.Recv(ctx, c, theirs, r, tagMean); err != nil {
			return nil, err
		}
		all = append(all, theirs)
	}
	return all, nil
}

// meet holds so many collectives that it is settled afterwards which ways there are to do them.
func meet(ctx context.Context, c *mpi.Comm) error {
	for range warmups {
		if err := collective.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
