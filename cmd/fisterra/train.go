package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wholefile"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/launch"
	"github.com/fisterra-hpc/fisterra/ps"
	"github.com/fisterra-hpc/fisterra/ps/train"
	"github.com/fisterra-hpc/fisterra/slurm"
	"github.com/spf13/cobra"
)

// trainFlags are the command line of a training run.
type trainFlags struct {
	connectFlags
	roles roleFlags

	mode, model, data, optimizer string
	epochs, batch, hidden        int
	rate                         float64
	seed                         uint64
	aggregate                    int
	checkpoint                   string
	checkpointEvery              int64
	out                          string
	json                         bool
	profile                      profileFlag
}

func trainCommand(env environment) *cobra.Command { return new(trainFlags).command(env) }

func (t *trainFlags) command(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Train a model with parameter servers, or with --ps 0 by allreduce",
		Long: `train trains a classifier. Alone it starts its own processes on this host, one parameter server and three
workers unless told otherwise; under srun, mpirun or fisterra run it joins, by default as one parameter
server and size-1 workers, and one rank by itself as a worker.

--data is optdigits (embedded), a directory with MNIST's four IDX files or with train.csv, train.libsvm, train.svm
or train.txt, or one file: CSV (label last, or where a header says label, class or target) or LIBSVM. Each may
be compressed (.gz, .zst). On several nodes it is where all ranks can read it, as are --checkpoint, --out and --site.

SIGTERM (exit code 143), SIGUSR1 (138; see sbatch --signal), Ctrl-C (130; not where a script has started it with &)
and a terminal that hangs up (129; not under nohup) save a checkpoint and end the run after the next step; SIGUSR2 saves and goes on. Where train has
started its own processes it passes these on and gives them 30 s; it also ends them when nobody reads its output
any more, as of "| head" (141). A second SIGTERM or Ctrl-C, half a second or more after the first, ends the
processes at once, without saving; in a job of Slurm's, where SIGTERM comes more than once, only Ctrl-C does.
Started again with the same --checkpoint the run goes on where it was.`,
		Example: `  fisterra train                            handwritten digits: a server and three workers, here
  fisterra train --ps 0 --workers 2         by allreduce
  fisterra train --data ./mnist --model softmax --out run1   MNIST's four files, in ./mnist
  srun -n 16 fisterra train --ps 2 --checkpoint /scratch/me/run --checkpoint-every 500`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	t.roles.add(f)
	f.StringVar(&t.mode, "mode", string(ps.Sync), "sync (one process with the joint batch would do the same), async")
	f.StringVar(&t.model, "model", "mlp", "mlp (one hidden layer), softmax")
	f.StringVar(&t.data, "data", train.Optdigits, "optdigits, or a path")
	f.StringVar(&t.optimizer, "optimizer", string(ps.Momentum), "sgd, momentum, adam")
	f.IntVar(&t.epochs, "epochs", train.DefaultEpochs, "passes over the training set")
	f.IntVar(&t.batch, "batch", train.DefaultBatch, "samples that all workers compute together: one update (sync), or one of each worker's share (async)")
	f.IntVar(&t.hidden, "hidden", train.DefaultHidden, "hidden units of the mlp")
	f.Float64Var(&t.rate, "lr", 0, "learning rate to begin with (0: "+defaultRates()+"; async divides it by √workers)")
	f.Uint64Var(&t.seed, "seed", 1, "of initial parameters and order of samples")
	f.IntVar(&t.aggregate, "aggregate", 0, "sync: gradients that make a step; fewer than workers are backup workers (0: all)")
	f.StringVar(&t.checkpoint, "checkpoint", "", "directory to save state in, and to resume from: remove its state.safetensors to begin anew")
	f.Int64Var(&t.checkpointEvery, "checkpoint-every", 0, "steps between checkpoints (0: only when asked or interrupted)")
	f.StringVar(&t.out, "out", "", "directory for metrics.jsonl, model.safetensors, result.json, curve.svg and a log per process")
	f.BoolVar(&t.json, "json", false, "print the result as one JSON object on stdout")
	t.profile.add(f)
	t.add(f)
	return cmd
}

// defaultRates tells the rates by optimizer and model.
func defaultRates() string {
	return fmt.Sprintf("momentum %g, with softmax %g; sgd %g, adam %g", train.DefaultRate("mlp", ps.Momentum), train.DefaultRate("softmax", ps.Momentum),
		train.DefaultRate("mlp", ps.SGD), train.DefaultRate("mlp", ps.Adam))
}

// layout is what all ranks must have been started with alike.
func (t *trainFlags) layout() []mpi.LayoutField {
	f := func(name string, value any) mpi.LayoutField {
		return mpi.LayoutField{Name: name, Value: fmt.Sprint(value)}
	}
	return []mpi.LayoutField{
		f("roles", t.roles.text()), f("--mode", t.mode), f("--model", t.model), f("--data", t.data),
		f("--optimizer", t.optimizer), f("--epochs", t.epochs), f("--batch", t.batch), f("--hidden", t.hidden),
		f("--lr", t.rate), f("--seed", t.seed), f("--aggregate", t.aggregate), f("--infiniband", t.infiniband),
		f("with --checkpoint", t.checkpoint != ""),
	}
}

// check finds what is wrong with the flags before any rank is started. workers is their
// number, 0 where only the launcher knows it so far.
func (t *trainFlags) check(workers int) error {
	switch ps.Mode(t.mode) {
	case ps.Sync, ps.Async:
	default:
		return fmt.Errorf("--mode %q: want sync or async", t.mode)
	}
	if err := (ps.Rule{Optimizer: ps.Optimizer(t.optimizer), Rate: 1}).WithDefaults().Validate(); err != nil {
		return fmt.Errorf("--optimizer: %w", err)
	}
	if t.epochs < 1 || t.batch < 1 || t.hidden < 1 {
		return fmt.Errorf("--epochs %d --batch %d --hidden %d: want at least 1 of each", t.epochs, t.batch, t.hidden)
	}
	if t.epochs > math.MaxInt32 { // the steps of fewer can be counted, however many rows there are
		return fmt.Errorf("--epochs %d: want at most %d", t.epochs, math.MaxInt32)
	}
	if _, err := train.NewModel[float32](t.model, train.Shape{Features: 1, Classes: 2, Hidden: t.hidden}); err != nil {
		return fmt.Errorf("--model %s --hidden %d: %w", t.model, t.hidden, err)
	}
	if !(t.rate >= 0) || math.IsInf(t.rate, 0) {
		return fmt.Errorf("--lr %g: want a positive number, or 0 for the optimizer's", t.rate)
	}
	switch {
	case t.checkpointEvery < 0:
		return fmt.Errorf("--checkpoint-every %d: want a number of steps, or 0 for never", t.checkpointEvery)
	case t.checkpointEvery > 0 && t.checkpoint == "":
		return fmt.Errorf("--checkpoint-every %d without --checkpoint: there is no directory to save in", t.checkpointEvery)
	case t.aggregate < 0:
		return fmt.Errorf("--aggregate %d: want a number of gradients, or 0 for those of all workers", t.aggregate)
	case t.aggregate > 0 && t.mode == string(ps.Async):
		return fmt.Errorf("--aggregate %d with --mode async, where each gradient is a step", t.aggregate)
	case workers < 1:
	case t.aggregate > workers:
		return fmt.Errorf("--aggregate %d: want at most the gradients of all workers, which are %d", t.aggregate, workers)
	case t.batch < workers:
		return fmt.Errorf("--batch %d for %d workers: want at least a sample for each", t.batch, workers)
	}
	return nil
}

// checkWithoutServers refuses what only parameter servers do.
func (t *trainFlags) checkWithoutServers() error {
	switch {
	case t.mode == string(ps.Async):
		return errors.New("--mode async without parameter servers: workers that are alone make each step together (--mode sync)")
	case t.aggregate > 0:
		return fmt.Errorf("--aggregate %d without parameter servers: workers that are alone make each step with all gradients", t.aggregate)
	}
	return nil
}

// checkData opens the data set as the ranks will: what they cannot read is said once, and not by each of them.
func (t *trainFlags) checkData() error {
	if t.data == train.Optdigits {
		return nil
	}
	if info, err := os.Stat(t.data); err == nil && info.IsDir() {
		return nil // its files are found by their names, so nobody has to be able to list it
	}
	f, err := os.OpenFile(t.data, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return fmt.Errorf("--data: not %q, and no file that can be read: %w", train.Optdigits, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("neither a regular file nor a directory")
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("--data %s: %w", t.data, err)
	}
	return nil
}

func (t *trainFlags) run(ctx context.Context, env environment) error {
	single, err := startedAlone(env)
	if err != nil {
		return err
	}
	var ranks int
	if single {
		ranks, err = t.roles.ranks()
	} else {
		ranks, err = t.roles.started(env)
	}
	if err == nil {
		err = t.check(t.roles.workers(ranks))
	}
	if err == nil && ranks > 1 && t.roles.servers(ranks) == 0 {
		err = t.checkWithoutServers()
	}
	if err == nil {
		err = t.checkData()
	}
	if err != nil {
		return usageError(err)
	}
	j := &job{env: env, connect: t.connectFlags, layout: t.layout(), ranks: ranks, outlivesRanks: t.outlivesWorkers(ranks)}
	if single && ranks > 1 {
		return t.start(ctx, j)
	}
	return t.join(ctx, env, j)
}

// join makes this process a rank. A signal while the ranks meet ends it; from
// then on the run ends after a step, with its state saved.
func (t *trainFlags) join(ctx context.Context, env environment, j *job) error {
	s := watchSignals(ctx, env.lookup)
	defer s.stop()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // SIGTERM is s's
	defer cancel()
	met := make(chan struct{})
	go func() {
		select {
		case <-s.interrupt:
			cancel()
		case <-met:
		case <-ctx.Done():
		}
	}()
	rank := t.profile.around(func(ctx context.Context, w *mpi.World) error { return t.rank(ctx, env, w, s) })
	j.main = func(ctx context.Context, w *mpi.World) error {
		close(met)
		return rank(ctx, w)
	}
	err := j.join(ctx)
	if err != nil && ctx.Err() != nil {
		why := s.why()
		return &exitError{signalled + why, fmt.Errorf("ended by signal %d while the ranks met: %w", why, err)}
	}
	return err
}

// patience is how long ranks have to end by themselves, with their own
// message, after one of them has failed.
const patience = 10 * time.Second

// grace is how long ranks have to save and end after SIGTERM: what Slurm gives them, too,
// by its default KillWait.
const grace = 30 * time.Second

// start starts the ranks on this host.
func (t *trainFlags) start(ctx context.Context, j *job) error {
	here, err := slurm.NewLayout([]string{"localhost"}, []int{j.ranks})
	if err != nil {
		return usageError(err)
	}
	roles, err := t.roles.assign(here)
	if err == nil {
		_, err = ps.NewCluster(roles)
	}
	if err != nil {
		return usageError(err)
	}
	if err := t.makeDirectories(); err != nil {
		return directoryError(err)
	}
	j.launch = func(cfg *launch.Config) {
		cfg.Patience, cfg.Grace = patience, grace
		if t.outlivesWorkers(len(roles)) {
			cfg.Policy = launch.Continue
		}
		if columns := terminalColumns(j.env.stdout); columns > 0 && !t.json {
			cfg.Env = append(cfg.Env, fmt.Sprintf("%s=%d", envColumns, columns))
		}
	}
	o, err := j.start(ctx, os.Args[1:])
	if err != nil {
		return err
	}
	if code := t.codeOf(o, roles); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// makeDirectories makes the directories of --out and --checkpoint: what cannot be written is found before there are
// ranks that would fail.
func (t *trainFlags) makeDirectories() error {
	for _, d := range []struct{ flag, dir string }{{"--out", t.out}, {"--checkpoint", t.checkpoint}} {
		if d.dir == "" {
			continue
		}
		if err := os.MkdirAll(d.dir, 0o755); err != nil {
			return fmt.Errorf("%s: %w", d.flag, err)
		}
		if err := wholefile.Probe(filepath.Join(d.dir, "file")); err != nil {
			return fmt.Errorf("%s %s: no file can be made there: %w", d.flag, d.dir, withoutPath(err))
		}
	}
	return nil
}

// codeOf is the exit code of a job whose ranks had these roles. Where a run goes on without lost workers, workers
// that were killed do not matter if others have finished, or were asked to end.
func (t *trainFlags) codeOf(o launch.Outcome, roles slurm.Roles) int {
	if !t.outlivesWorkers(len(roles)) || o.TimedOut {
		return o.Code
	}
	code, finished := 0, false
	for _, x := range o.Exits {
		switch {
		case x.Ended: // its code is no more than the answer to the request
		case x.Signal == 0 || roles[x.Rank] == slurm.PS:
			code = max(code, x.Code)
		}
		finished = finished || x.Ended || x.Signal == 0 && roles[x.Rank] != slurm.PS
	}
	switch {
	case !finished:
		return o.Code
	case code == 0 && o.Interrupted != 0:
		return signalled + int(o.Interrupted)
	}
	return code
}

// outlivesWorkers reports whether a run of so many ranks goes on without a worker that was lost.
func (t *trainFlags) outlivesWorkers(ranks int) bool {
	return t.mode == string(ps.Async) && t.roles.servers(ranks) > 0
}

// rank is what one rank does.
func (t *trainFlags) rank(ctx context.Context, env environment, w *mpi.World, s *signals) error {
	layout, err := w.Layout()
	if err != nil {
		return err
	}
	roles, err := t.roles.assign(layout)
	if err != nil {
		return usageError(err)
	}
	cluster, err := ps.ClusterOf(w, roles)
	if err == nil {
		err = t.check(len(cluster.Workers)) // not every launcher says beforehand how many ranks there are
	}
	if err == nil && len(cluster.Servers) == 0 && len(cluster.Workers) > 1 {
		err = t.checkWithoutServers()
	}
	if err != nil {
		return usageError(err)
	}
	me := w.Position(w.Rank())
	name := fmt.Sprintf("%s%d", roles[me], roles.Index(me))
	log, closeLog, err := t.openLog(env, w, name)
	if err != nil {
		return err
	}
	defer closeLog()
	s.report(log)
	if t.out != "" {
		introduce(log, w, name)
	}
	screen := newScreen(env, t.json)
	isChief := w.Rank() == cluster.Workers[0]
	if isChief {
		screen.members(w, roles)
	}
	c, err := t.claim(ctx, env, w, cluster.Workers[0])
	if err != nil {
		return err
	}
	cfg := train.Config{
		Comm: w.Comm(), Cluster: cluster, Mode: ps.Mode(t.mode), Data: t.data, Model: t.model, Hidden: t.hidden,
		Epochs: t.epochs, Batch: t.batch, Seed: t.seed, Aggregate: t.aggregate,
		Rule:       ps.Rule{Optimizer: ps.Optimizer(t.optimizer), Rate: t.rate},
		Checkpoint: c.state(), CheckpointEvery: t.checkpointEvery, Save: s.save, Interrupt: s.interrupt, BeforeSave: c.check, BeforeOutput: c.held,
		Out: t.out, Report: screen.report, Transport: transportName(w, cluster), Log: log,
	}
	if t.checkpoint != "" {
		cfg.Claim = c.take
	}
	result, err := train.Run(ctx, cfg)
	if err != nil {
		log.Info("the run failed", "error", err) // and on stderr, at the end
		return trainError(err)
	}
	if result.Evaluated { // this rank is the chief, or has taken its place
		screen.result(result)
	}
	if result.Interrupted {
		return &exitError{code: signalled + s.why()}
	}
	return nil
}

func trainError(err error) error {
	var data *train.DataError
	if errors.As(err, &data) {
		return usageError(err)
	}
	return err
}

// transportName is how the chief talks to the others.
func transportName(w *mpi.World, c ps.Cluster) string {
	chief := c.Workers[0]
	for _, peers := range [][]int{c.Servers, c.Workers} {
		for _, r := range peers {
			if r != chief && r != w.Rank() {
				name, _ := w.Comm().Transport(r)
				return name
			}
		}
	}
	return "self"
}
