package train

// When workers have trained enough, or are told to stop, and what the run says of it.

import (
	"context"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/ps"
)

// All workers of a synchronous run join at one step, also where steps need some of them only: they reach their own numbers
// of steps together, and nobody is left to make steps alone.
func TestBackupWorkersJoinTogether(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const deadline = 100 * time.Millisecond
		f := launch(t, Config{Cluster: ps.Counts(1, 3), Mode: ps.Sync, Aggregate: 2, Hidden: 8, Stop: ps.Stop{NumSteps: 10}, Deadline: deadline}, func(rank int, _ *fleet, c *Config) {
			if rank == 3 {
				c.Hooks = []Hook{{Begin: func(context.Context, Session) error {
					<-time.After(deadline / 2) // of the bubble: the others have gone as far as they can
					return nil
				}}}
			}
		})
		f.fine(t)
		for rank, r := range f.results {
			if r.Steps != 10 {
				t.Errorf("rank %d ends at step %d", rank, r.Steps)
			}
		}
	})
}
