package mpi_test

import (
	"context"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// BenchmarkSendRecv is all that a message of 8 B through shared memory costs its
// sender and its receiver together, on one core: the instructions, without the
// travelling.
func BenchmarkSendRecv(b *testing.B) {
	ws := mpitest.SharedMemoryWorlds(b, 2)
	out, in := make([]byte, 8), make([]byte, 8)
	ended := make(chan struct{})
	mpitest.Together(b, ws, func(ctx context.Context, c *mpi.Comm) error {
		peer := 1 - c.Rank()
		if _, err := mpi.Sendrecv(ctx, c, []byte{1}, peer, 1, make([]byte, 1), peer, 1); err != nil || c.Rank() == 1 {
			<-ended
			return err
		}
		defer close(ended)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			from, to := i&1, 1-i&1 // both ways, since credit comes back as a message
			if err := mpi.Send(ctx, ws[from].Comm(), out, to, 1); err != nil {
				return err
			}
			if _, err := mpi.Recv(ctx, ws[to].Comm(), in, from, 1); err != nil {
				return err
			}
		}
		return nil
	})
}
