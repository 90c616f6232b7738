package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// allreduce is the exchange without servers: every worker keeps parameters and
// optimizer, and all add up their gradients in each step. Since all add the
// same numbers in the same order, their parameters stay equal bit by bit.
type allreduce[F Float] struct {
	cfg   *Config
	rule  ps.Rule
	root  int
	made  int64 // steps
	sum   []F   // gradient and extras
	slots [][]F
	stop  bool
}

// extras is how many numbers are added up besides the gradient: the weight, and the wish to stop.
const extras = 2

// newAllreduce returns an exchange that keeps sum, which has room for a gradient and extras.
func newAllreduce[F Float](cfg *Config, p plan, sum []F) *allreduce[F] {
	return &allreduce[F]{cfg: cfg, rule: p.rule, root: cfg.Cluster.Workers[0], sum: sum}
}

func (a *allreduce[F]) begin(ctx context.Context, params []F, slots [][]F, step int64) (global, resumed int64, err error) {
	a.slots = slots
	for len(a.slots) < a.rule.Slots() {
		a.slots = append(a.slots, make([]F, len(params)))
	}
	first := []int64{step}
	err = collective.Bcast(ctx, a.cfg.Comm, first, a.root)
	if err == nil {
		err = collective.Bcast(ctx, a.cfg.Comm, params, a.root)
	}
	for _, slot := range a.slots {
		if err == nil && first[0] > 0 {
			err = collective.Bcast(ctx, a.cfg.Comm, slot, a.root)
		}
	}
	a.made = first[0]
	return a.made, a.made, a.broke(ctx, "begin", err)
}

func (a *allreduce[F]) step(ctx context.Context, grad, params []F, c ps.Contribution) (global int64, dropped bool, err error) {
	n := copy(a.sum, grad)
	a.sum[n], a.sum[n+1] = F(c.Weight), 0
	if c.Stop {
		a.sum[n+1] = 1
	}
	if err := collective.Allreduce(ctx, a.cfg.Comm, a.sum, a.sum, collective.Sum); err != nil {
		return 0, false, a.broke(ctx, fmt.Sprintf("step %d", a.made), err)
	}
	ps.Apply(a.rule, a.made, params, a.sum[:n], a.slots, float64(a.sum[n]))
	a.stop = a.stop || a.sum[n+1] > 0
	a.made++
	return a.made, false, nil
}

func (a *allreduce[F]) stopped() bool { return a.stop }

// alive has nobody to tell: collectives wait for as long as it takes.
func (a *allreduce[F]) alive(context.Context) error { return nil }

func (a *allreduce[F]) barrier(ctx context.Context) (lost []int, global int64, err error) {
	return nil, a.made, a.broke(ctx, "barrier", collective.Barrier(ctx, a.cfg.Comm))
}

// state has nothing to fetch: all of it is in the worker's own memory.
func (a *allreduce[F]) state(ctx context.Context, params []F, slots [][]F) (int64, error) {
	return a.made, nil
}

func (a *allreduce[F]) finish(ctx context.Context, status, epoch int) ([]int, error) {
	if status != 0 {
		a.cfg.Comm.Revoke() // nobody can make a step without this worker
		return nil, nil
	}
	return nil, a.broke(ctx, "final barrier", collective.Barrier(ctx, a.cfg.Comm))
}

// broke names the lost rank behind an error and ends the run for the others.
func (a *allreduce[F]) broke(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	c := a.cfg.Comm
	if errors.Is(err, mpi.ErrPeerLost) {
		c.Revoke()
	}
	if named := a.cfg.explain(ctx, what, err); named != err {
		return named
	}
	return fmt.Errorf("train: %s: %w", what, err)
}
