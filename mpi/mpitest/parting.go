package mpitest

import (
	"context"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// failedGoodbye bounds the wait for those that have died without a message to tell it by, in vain.
const failedGoodbye = 5 * time.Second

// Parting is how ranks that are goroutines of one test close their worlds: with all the time that the others may need,
// but only a little once one of them has failed, and perhaps gone without a word.
type Parting struct {
	ctx    context.Context
	fail   context.CancelFunc
	within time.Duration
}

// NewParting is for ranks that part within some time.
func NewParting(within time.Duration) *Parting {
	ctx, fail := context.WithCancel(context.Background())
	return &Parting{ctx, fail, within}
}

// Close closes a rank's world. failed is what the rank ended with, nil if it ended well.
func (p *Parting) Close(w *mpi.World, failed error) error {
	if failed != nil {
		p.fail()
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.within)
	defer cancel()
	stop := context.AfterFunc(p.ctx, func() { time.AfterFunc(failedGoodbye, cancel) })
	defer stop()
	return w.Close(ctx)
}
