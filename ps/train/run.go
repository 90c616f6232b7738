package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// table is the name of the one table: all parameters of the model.
const table = "params"

// tagStart carries what the others must know from the chief: to the servers the sizes of the problem, since they read no
// data, and to the workers the step that the run begins with.
func (c *Config) tagStart() int { return ps.FreeTag(c.Comm) }

// Run does this rank's part of a run: serve, or train. All ranks of the
// communicator call it. It returns when everybody is finished, in Async mode also when
// workers were lost on the way. In the other modes a loss is an error on every rank
// that is left, naming the lost rank and its host. Parameters and gradients lie in memory from mpi.Alloc, which a
// run that had begun and failed keeps: peers may still read it.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Comm == nil {
		return nil, errors.New("train: no communicator")
	}
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if err == nil && slices.Contains(cfg.Cluster.Servers, cfg.Comm.Rank()) {
		return serve(ctx, &cfg)
	}
	var data *Dataset
	if err == nil {
		data, err = Open(cfg.Data, cfg.Seed)
	}
	if err != nil {
		cfg.Comm.Revoke() // nobody knows of this rank yet: do not let them wait for it
		return nil, err
	}
	if cfg.Precision == ps.Float64 {
		return work[float64](ctx, &cfg, data)
	}
	return work[float32](ctx, &cfg, data)
}

// patience bounds the waits in which nobody else watches the clock.
func (c *Config) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.Deadline)
}

// ready waits until all ranks have what they need to begin, if the run has a Claim: nothing is to be claimed for a
// run that then cannot start.
func (c *Config) ready(ctx context.Context) error {
	if c.Claim == nil {
		return nil
	}
	first, cancel := c.patience(ctx)
	defer cancel()
	if err := collective.Barrier(first, c.Comm); err != nil {
		return fmt.Errorf("train: until all ranks are ready: %w", c.explain(ctx, "start", err))
	}
	return nil
}

// sizes is what a server must know of data and model.
type sizes struct{ rows, params int64 }

func (c *Config) psConfig(s sizes) (ps.Config, plan, error) {
	p, err := c.plan(int(s.rows))
	return ps.Config{
		Comm: c.Comm, Cluster: c.Cluster, Mode: c.Mode, Aggregate: c.Aggregate, Rule: p.rule, StaleDiscount: true,
		Tables:     []ps.Table{{Name: table, Len: int(s.params), Type: c.Precision}},
		BlockBytes: c.BlockBytes, Window: c.Window, UnappliedBytes: c.UnappliedBytes, Deadline: c.Deadline, Log: c.Log,
	}, p, err
}

// explain makes an error name the rank that is lost.
func (c *Config) explain(ctx context.Context, op string, err error) error {
	return ps.Config{Comm: c.Comm, Cluster: c.Cluster, Mode: c.Mode}.Explain(ctx, op, err)
}

// serve is a server's part.
func serve(ctx context.Context, cfg *Config) (*Result, error) {
	chief := cfg.Cluster.Workers[0]
	var got [2]int64
	first, cancel := cfg.patience(ctx)
	defer cancel()
	if _, err := mpi.Recv(first, cfg.Comm, got[:], chief, cfg.tagStart()); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, fmt.Errorf("train: the chief (rank %d on %s) has not said the sizes of data and model within %v, in which it must have read the data: %w",
				chief, cfg.Comm.Host(chief), cfg.Deadline, err)
		}
		return nil, fmt.Errorf("train: sizes of data and model from the chief (rank %d on %s): %w", chief, cfg.Comm.Host(chief), cfg.explain(ctx, "start", err))
	}
	pc, p, err := cfg.psConfig(sizes{got[0], got[1]})
	if err != nil {
		cfg.Comm.Revoke()
		return nil, err
	}
	server, err := ps.NewServer(pc)
	if err == nil {
		err = cfg.ready(ctx)
	}
	if err != nil {
		cfg.Comm.Revoke()
		return nil, err
	}
	over := make(chan struct{})
	defer close(over)
	if cfg.Interrupt != nil {
		go func() {
			select {
			case <-cfg.Interrupt:
				server.Interrupt()
			case <-over:
			}
		}()
	}
	begin := time.Now()
	sum, err := server.Serve(ctx)
	if err != nil {
		return nil, err
	}
	r := cfg.result(cfg.Data, p)
	r.Steps, r.Lost, r.Server = sum.GlobalStep, sum.Lost, sum
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

// result begins a Result.
func (c *Config) result(data string, p plan) *Result {
	return &Result{
		Schema: Schema, Data: data, Model: c.Model, Mode: c.modeName(), Ranks: c.Comm.Size(),
		PS: len(c.Cluster.Servers), Workers: len(c.Cluster.Workers), Epochs: c.Epochs, Transport: c.Transport, Lost: []int{},
	}
}
