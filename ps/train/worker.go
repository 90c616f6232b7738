package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// worker is the state of a worker's loop.
type worker[F Float] struct {
	cfg   *Config
	plan  plan
	index int
	data  *Dataset
	shard Split // what it trains on
	turn  int   // whose shard that is
	model Model[F]
	x     exchange[F]
	hooks hooks

	params, grad []F
	memory       [][]F // from mpi.Alloc
	slots        [][]F // for checkpoints; chief
	features     []F
	classes      []int32
	order        []int
	epoch        int

	begun    time.Time
	resumed  int64 // the step that the chief began with
	global   int64 // global step
	joined   int64 // global step at which this worker began
	position int64 // which of its own batches comes next
	chief    *chief[F]
}

// work is a worker's part.
func work[F Float](ctx context.Context, cfg *Config, data *Dataset) (*Result, error) {
	w, err := newWorker[F](ctx, cfg, data)
	if err == nil {
		err = cfg.ready(ctx)
	}
	if err != nil {
		cfg.Comm.Revoke()
		return nil, errors.Join(err, w.free()) // none of it has been shown to a peer
	}
	r, err := w.run(ctx)
	if err != nil && w.chief != nil {
		w.chief.abandon()
	}
	return r, err
}

// newWorker returns a worker also with an error: its memory is the caller's to free.
func newWorker[F Float](ctx context.Context, cfg *Config, data *Dataset) (*worker[F], error) {
	w := &worker[F]{cfg: cfg, index: slices.Index(cfg.Cluster.Workers, cfg.Comm.Rank()), data: data, hooks: cfg.Hooks, epoch: -1}
	if w.index < 0 {
		return w, fmt.Errorf("train: rank %d has no role", cfg.Comm.Rank())
	}
	var err error
	if w.model, err = NewModel[F](cfg.Model, Shape{Features: data.Train.Features, Classes: len(data.Labels), Hidden: cfg.Hidden}); err != nil {
		return w, err
	}
	n := Params(w.model)
	if w.plan, err = cfg.plan(data.Train.Rows()); err != nil {
		return w, err
	}
	if w.params, err = w.alloc("parameters", n); err != nil {
		return w, err
	}
	if w.grad, err = w.alloc("gradient", n); err != nil {
		return w, err
	}
	if w.index == 0 {
		for range w.plan.rule.Slots() {
			w.slots = append(w.slots, make([]F, n))
		}
	}
	w.take(w.index)
	if cfg.together() && w.index > 0 {
		data.Train.X = nil // the shard is all that is needed
	}
	w.x, err = w.connect(ctx, sizes{int64(data.Train.Rows()), int64(n)})
	return w, err
}

// take makes a shard the one that the worker trains on.
func (w *worker[F]) take(turn int) {
	w.turn, w.shard = turn, w.data.Train.Select(w.plan.batches.Shard(turn))
}

// alloc gets memory that other ranks can read without copies, until free.
func (w *worker[F]) alloc(what string, n int) ([]F, error) {
	m, err := mpi.Alloc[F](w.cfg.Comm, n)
	if err != nil {
		return nil, fmt.Errorf("train: %s: %w", what, err)
	}
	w.memory = append(w.memory, m)
	return m, nil
}

// free gives that memory back.
func (w *worker[F]) free() error {
	var errs []error
	for _, m := range w.memory {
		if err := mpi.Free(w.cfg.Comm, m); err != nil {
			errs = append(errs, fmt.Errorf("train: %w", err))
		}
	}
	w.params, w.grad, w.memory = nil, nil, nil
	return errors.Join(errs...)
}

func (w *worker[F]) connect(ctx context.Context, s sizes) (exchange[F], error) {
	if w.cfg.collective() {
		sum, err := w.alloc("sum of gradients", int(s.params)+extras)
		return newAllreduce(w.cfg, w.plan, sum), err
	}
	pc, _, err := w.cfg.psConfig(s)
	if err != nil {
		return nil, err
	}
	pw, err := ps.NewWorker(pc)
	if err != nil {
		return nil, err
	}
	if w.index == 0 {
		for _, server := range w.cfg.Cluster.Servers {
			if err := mpi.Send(ctx, w.cfg.Comm, []int64{s.rows, s.params}, server, w.cfg.tagStart()); err != nil {
				return nil, fmt.Errorf("train: sizes to ps: %w", w.cfg.explain(ctx, "start", err))
			}
		}
	}
	return &served[F]{Worker: pw, cfg: w.cfg, together: w.cfg.together()}, nil
}
