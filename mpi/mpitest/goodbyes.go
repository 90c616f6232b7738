package mpitest

import (
	"context"
	"sync"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Goodbyes is the Membership of worlds of one process over real providers: who closes waits
// for all. Losses are what the providers report.
type Goodbyes struct{ missing sync.WaitGroup }

// NewGoodbyes is for n worlds that share it.
func NewGoodbyes(n int) *Goodbyes {
	g := &Goodbyes{}
	g.missing.Add(n)
	return g
}

func (g *Goodbyes) Start(mpi.MembershipEvents) {}
func (g *Goodbyes) AnnounceLost(int, string)   {}
func (g *Goodbyes) Abort(int, string)          {}
func (g *Goodbyes) Close()                     {}

// Bye implements mpi.Membership.
func (g *Goodbyes) Bye(ctx context.Context) error {
	g.missing.Done()
	all := make(chan struct{})
	go func() {
		g.missing.Wait()
		close(all)
	}()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
