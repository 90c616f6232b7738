package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// served is the exchange with a parameter server.
type served[F Float] struct {
	*ps.Worker
	cfg      *Config
	together bool
}

func (s *served[F]) begin(ctx context.Context, params []F, slots [][]F, step int64) (global, resumed int64, err error) {
	if s.Chief() {
		if err := s.set(ctx, params, slots, step); err != nil {
			return 0, 0, err
		}
	}
	a, err := ps.Pull(ctx, s.Worker, table, params).Wait(ctx)
	if err != nil {
		return 0, 0, err
	}
	if resumed = step; !s.Chief() {
		if resumed, err = s.chiefsStep(ctx); err != nil {
			return 0, 0, err
		}
	}
	if global = a.Version; !s.together {
		global, err = s.AddStep(ctx, 0)
	}
	return global, resumed, err
}

// set gives the servers the chief's state. It first tells the other workers the chief's step, so that a worker that
// has the parameters also knows which step the result is to name if it takes the chief's place.
func (s *served[F]) set(ctx context.Context, params []F, slots [][]F, step int64) error {
	for _, rank := range s.cfg.Cluster.Workers[1:] {
		_ = mpi.Send(ctx, s.cfg.Comm, []int64{step}, rank, s.cfg.tagStart()) // a worker it does not reach is gone: the servers say what that means
	}
	if step > 0 { // else slots are zero already
		for i, slot := range slots {
			if _, err := ps.Set(ctx, s.Worker, table, i+1, slot, step).Wait(ctx); err != nil {
				return err
			}
		}
		if _, err := s.AddStep(ctx, step); err != nil {
			return err
		}
	}
	_, err := ps.Set(ctx, s.Worker, table, 0, params, step).Wait(ctx)
	return err
}

// chiefsStep receives the step that the chief sent before it set the parameters, which this worker has. If the
// chief was lost and the message with it, nobody knows the step: 0.
func (s *served[F]) chiefsStep(ctx context.Context) (int64, error) {
	var step [1]int64
	chief := s.cfg.Cluster.Workers[0]
	_, err := mpi.Recv(ctx, s.cfg.Comm, step[:], chief, s.cfg.tagStart())
	switch {
	case errors.Is(err, mpi.ErrPeerLost):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("train: the step to begin with from the chief (rank %d on %s): %w", chief, s.cfg.Comm.Host(chief), err)
	}
	return step[0], nil
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
	if !s.together { // asked before the pull: the others go on meanwhile, and no step is to be claimed that the parameters do not contain
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
