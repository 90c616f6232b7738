package train

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// Notice is the level of what a user wants to read in the job's log unasked: that
// state was saved, that a run has resumed.
const Notice = slog.LevelInfo + 2

// Config describes a run to all its ranks. Everything down to Precision must
// be the same on each; zero values mean the defaults that are named.
type Config struct {
	// Comm carries the messages and belongs to the run until it ends.
	Comm *mpi.Comm
	// Cluster says who is what. Without servers the workers keep the parameters
	// themselves and add up their gradients by collectives.
	Cluster ps.Cluster
	Mode    ps.Mode // with servers: Async if empty

	Data   string // data set, see Open; "optdigits" if empty
	Model  string // "mlp" if empty
	Hidden int    // DefaultHidden
	Epochs int    // DefaultEpochs
	// Batch is how many samples the workers share at a time (DefaultBatch). In Sync mode and with collectives a
	// batch makes one update: each worker has a shard of the rows, and all but the chief keep no other rows. In
	// Async mode each worker's share of a batch makes an update, and workers keep all rows (see Batches.Turn).
	Batch int
	// Rule is Momentum if empty, with DefaultRate, which rises at first and then falls linearly to the end of the
	// run. With Stop.NumSteps nobody knows the end beforehand: the rate stays, unless Updates says over how many
	// updates it falls.
	Rule      ps.Rule
	Seed      uint64
	Aggregate int      // see ps.Config
	Stop      ps.Stop  // if empty, the run ends when all workers together have made Epochs passes
	Precision ps.DType // Float32

	// StartBarrier keeps workers from beginning before all are there, which
	// Sync mode implies.
	StartBarrier bool
	// Checkpoint is the file in which state is saved when asked for, every
	// CheckpointEvery steps (0: never by itself) and when the run is interrupted. A run
	// whose file exists resumes from it. Only the chief reads and writes it.
	Checkpoint      string
	CheckpointEvery int64
	// Claim makes the checkpoint file this run's. The chief calls it when all ranks have their data and are ready
	// to begin. Claim calls resume, once or more, when the file holds what the run is to go on from. An error of
	// resume means that the run cannot go on from it; like any error of Claim it ends the run. Nil: the file is
	// this run's already. Claim must be nil on all ranks or on none.
	Claim func(resume func() error) error
	// BeforeSave is asked before the chief writes the file; an error ends the run
	// with nothing written. Nil: nobody is asked.
	BeforeSave func() error
	// BeforeOutput is asked before the chief opens Out, before it writes there and before each Report; an error ends the
	// run with nothing more written or reported. Nil: nobody is asked.
	BeforeOutput func() error
	// Save asks for a checkpoint with each value received from it; Interrupt, when it is closed, asks for the end
	// of the run after the next step.
	Save      <-chan struct{}
	Interrupt <-chan struct{}

	// Out is a directory for metrics.jsonl, model.safetensors, curve.svg and result.json, written by the chief: the
	// last one when all ranks have finished, in Async mode also before. Empty: nothing is written.
	Out string
	// EvaluateEvery is after how many steps the chief looks at the test set; 0 is
	// once per epoch, but at most a hundred times.
	EvaluateEvery int64
	// Report is called by the chief, in Run's goroutine: about a hundred times in a run, with each evaluation, and
	// when a while has passed without a report: half a second at first, later up to five seconds.
	Report func(Metric)
	Hooks  []Hook
	// Transport is passed on to Result.
	Transport string

	// Of package ps, see there.
	BlockBytes     int
	Window         int
	UnappliedBytes int
	Deadline       time.Duration

	Log *slog.Logger // nil: nothing is logged
}

func (c Config) withDefaults() Config {
	text := func(s *string, def string) {
		if *s == "" {
			*s = def
		}
	}
	number := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	text(&c.Data, Optdigits)
	text(&c.Model, "mlp")
	text((*string)(&c.Mode), string(ps.Async))
	number(&c.Hidden, DefaultHidden)
	number(&c.Epochs, DefaultEpochs)
	number(&c.Batch, DefaultBatch)
	if c.Precision == 0 {
		c.Precision = ps.Float32
	}
	text((*string)(&c.Rule.Optimizer), string(ps.Momentum))
	if c.Rule.Rate == 0 {
		c.Rule.Rate = DefaultRate(c.Model, c.Rule.Optimizer)
		if !c.together() {
			c.Rule.Rate /= math.Sqrt(float64(len(c.Cluster.Workers)))
		}
	}
	if c.Deadline == 0 {
		c.Deadline = ps.DefaultDeadline
	}
	if c.Stop.NumSteps > 0 && c.Rule.Updates == 0 {
		text((*string)(&c.Rule.Decay), string(ps.Constant))
	}
	text((*string)(&c.Rule.Decay), string(ps.Linear))
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Epochs < 1:
		return fmt.Errorf("train: %d epochs; at least 1 is needed", c.Epochs)
	case c.Batch < 1:
		return fmt.Errorf("train: batch of %d samples; at least 1 is needed", c.Batch)
	case c.Precision != ps.Float32 && c.Precision != ps.Float64:
		return fmt.Errorf("train: precision %v; float32 and float64 are possible", c.Precision)
	case c.Mode != ps.Async && c.Mode != ps.Sync:
		return fmt.Errorf("train: mode %q; async and sync are possible", c.Mode)
	case c.CheckpointEvery < 0 || c.EvaluateEvery < 0:
		return fmt.Errorf("train: a checkpoint every %d and an evaluation every %d steps; numbers from 0 are possible", c.CheckpointEvery, c.EvaluateEvery)
	case c.CheckpointEvery > 0 && c.Checkpoint == "":
		return fmt.Errorf("train: a checkpoint every %d steps needs a file", c.CheckpointEvery)
	}
	if _, err := NewModel[float32](c.Model, Shape{Features: 1, Classes: 2, Hidden: c.Hidden}); err != nil {
		return err
	}
	return c.Cluster.Validate(c.Comm.Size())
}

// beforeOutput is an error if nothing may be written to Out or reported any more.
func (c *Config) beforeOutput() error {
	if c.BeforeOutput == nil {
		return nil
	}
	return c.BeforeOutput()
}

// collective reports whether the run has no servers.
func (c *Config) collective() bool { return len(c.Cluster.Servers) == 0 }

// together reports whether all workers make each step together.
func (c *Config) together() bool { return c.collective() || c.Mode == ps.Sync }

// modeName is what Result calls the mode.
func (c *Config) modeName() string {
	if c.collective() {
		return "collective"
	}
	return string(c.Mode)
}

// plan is what follows from the configuration and the size of the data.
type plan struct {
	batches  Batches // of a worker's own steps
	each     int64   // global steps of one joint batch: 1, or one of each worker
	perEpoch int64   // global steps of one pass over the training set
	rule     ps.Rule
	stop     ps.Stop
}

// stepAfter takes the step at which a run with perEpoch steps in a pass made a checkpoint, and returns this run's
// step at the same point of the data. If this run has another number of steps in a pass, the step is rounded down
// to a whole joint batch, so part of a batch may be trained on twice.
func (p plan) stepAfter(step, perEpoch int64) int64 {
	if perEpoch == p.perEpoch {
		return step
	}
	batches := p.perEpoch / p.each
	return step/perEpoch*p.perEpoch + step%perEpoch*batches/perEpoch*p.each
}

func (c *Config) plan(rows int) (plan, error) {
	workers := len(c.Cluster.Workers)
	p := plan{rule: c.Rule.WithDefaults(), stop: c.Stop, each: 1}
	if !c.together() {
		p.each = int64(workers)
	}
	if rows < workers { // in the words of the user, who chose the file
		return p, badData(c.Data, 0, "%d rows to train on cannot be shared by %d workers (--workers): want at most one for each row", rows, workers)
	}
	p.batches = Batches{Rows: rows, Batch: c.Batch, Workers: workers, Seed: c.Seed}
	if err := p.batches.Validate(); err != nil {
		return p, err
	}
	p.perEpoch = int64(p.batches.Steps()) * p.each
	if p.stop == (ps.Stop{}) {
		if most := math.MaxInt64 / p.perEpoch; int64(c.Epochs) > most {
			return p, fmt.Errorf("train: %d epochs of %d steps each are more steps than can be counted; want at most %d epochs", c.Epochs, p.perEpoch, most)
		}
		p.stop.LastStep = int64(c.Epochs) * p.perEpoch
	}
	if err := p.stop.Validate(); err != nil {
		return p, err
	}
	if p.rule.Updates == 0 {
		p.rule.Updates = p.stop.LastStep
	}
	if p.stop.NumSteps > 0 && p.rule.Updates == 0 && p.rule.Decay != ps.Constant {
		return p, fmt.Errorf("train: %s decay in a run that ends %v: over how many updates the rate falls must be said", p.rule.Decay, p.stop)
	}
	if p.rule.Warmup == 0 {
		p.rule.Warmup = int64(warmup * float64(max(p.rule.Updates, p.stop.NumSteps)))
	}
	return p, p.rule.Validate()
}
