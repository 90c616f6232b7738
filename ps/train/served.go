package train

import (
	"context"

	"github.com/fisterra-hpc/fisterra/ps"
)

// served is the exchange with a parameter server.
type served[F Float] struct {
	*ps.Worker
	together bool
}

func (s *served[F]) begin(ctx context.Context, params []F, slots [][]F, step int64) (int64, error) {
	if s.Chief() {
		for i, slot := range slots {
			if step == 0 {
				break // they are zero already
			}
			if _, err := ps.Set(ctx, s.Worker, table, i+1, slot, step).Wait(ctx); err != nil {
				return 0, err
			}
		}
		if step > 0 {
			if _, err := s.AddStep(ctx, step); err != nil {
				return 0, err
			}
		}
		if _, err := ps.Set(ctx, s.Worker, table, 0, params, step).Wait(ctx); err != nil {
			return 0, err
		}
	}
	a, err := ps.Pull(ctx, s.Worker, table, params).Wait(ctx)
	if err != nil {
		return 0, err
	}
	if s.together {
		return a.Version, nil
	}
	return s.AddStep(ctx, 0)
}

func (s *served[F]) step(ctx context.Context, grad, params []F, c ps.Contribution) (global int64, dropped bool, err error) {
	a, err := ps.PushPull(ctx, s.Worker, table, grad, params, c).Wait(ctx)
	if s.together {
		return a.Version, a.Dropped, err
	}
	return s.GlobalStep(), a.Dropped, err
}

func (s *served[F]) stopped() bool { return s.Stopped() }

func (s *served[F]) alive(ctx context.Context) error { return s.Alive(ctx) }

func (s *served[F]) barrier(ctx context.Context) (lost []int, global int64, err error) {
	lost, err = s.Barrier(ctx)
	return lost, s.GlobalStep(), err
}

func (s *served[F]) state(ctx context.Context, params []F, slots [][]F) (step int64, err error) {
	if !s.together { // asked before the pull: of the steps of the others that go on meanwhile none is claimed that is not in
		if step, err = s.AddStep(ctx, 0); err != nil {
			return 0, err
		}
	}
	a, err := ps.Pull(ctx, s.Worker, table, params).Wait(ctx)
	if s.together {
		step = a.Version
	}
	for i, slot := range slots {
		if err == nil {
			_, err = ps.Fetch(ctx, s.Worker, table, i+1, slot).Wait(ctx)
		}
	}
	return step, err
}

func (s *served[F]) finish(ctx context.Context, status, epoch int) ([]int, error) {
	return s.Finish(ctx, status, epoch)
}
