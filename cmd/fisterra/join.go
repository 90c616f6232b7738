package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/launch"
	"github.com/fisterra-hpc/fisterra/ps"
)

// job is a command that runs on several ranks: alone it starts them itself,
// under a launcher it joins.
type job struct {
	env     environment
	connect connectFlags
	// layout is what all ranks must have been started with alike.
	layout []mpi.LayoutField
	// outlivesRanks says that main goes on when ranks are lost.
	outlivesRanks bool
	// ranks is how many to start when alone.
	ranks int
	// check refuses what so many ranks cannot do: before any is started, where this process starts them; may be nil.
	check func(ranks int) error
	// launch adjusts how they are started; may be nil.
	launch func(*launch.Config)
	// main is what each rank does.
	main func(ctx context.Context, w *mpi.World) error
}

// startedAlone reports whether no launcher has started this process.
func startedAlone(env environment) (bool, error) {
	l, err := mpi.Detect(env.lookup)
	if err != nil {
		return false, usageError(err)
	}
	return l.Kind == mpi.BySingleton, nil
}

// run does the job: with the arguments of this process, if it has to start ranks.
func (j *job) run(ctx context.Context, args []string) error {
	single, err := startedAlone(j.env)
	if err != nil {
		return err
	}
	if single && j.check != nil {
		if err := j.check(j.ranks); err != nil {
			return err
		}
	}
	if single && j.ranks > 1 {
		o, err := j.start(ctx, args)
		if err != nil {
			return err
		}
		if o.Code != 0 {
			return &exitError{code: o.Code}
		}
		return nil
	}
	return j.join(ctx)
}

// start starts the ranks as the same command on this host.
func (j *job) start(ctx context.Context, args []string) (launch.Outcome, error) {
	if err := j.connect.checkHere(ctx, j.env); err != nil {
		return launch.Outcome{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return launch.Outcome{}, err
	}
	cfg := launch.Config{Ranks: j.ranks, Program: self, Args: args}
	if j.launch != nil {
		j.launch(&cfg)
	}
	return launchHere(ctx, j.env, cfg)
}

// join opens the world, does this rank's part and says goodbye.
func (j *job) join(ctx context.Context) error {
	// Two, even when bound to one core: with one, a goroutine that comes back
	// from the kernel waits for the one that polls.
	runtime.GOMAXPROCS(max(2, processors(j.env.lookup, runtime.NumCPU())))
	cfg, err := j.connect.config(j.env, j.layout)
	if err != nil {
		return err
	}
	cfg.OutlivesRanks = j.outlivesRanks
	w, err := mpi.Init(ctx, cfg)
	if err != nil {
		return initError(err)
	}
	err = j.configure(w, cfg.Log)
	unanimous := errors.Is(err, errNoLibrary) // all ranks find the same
	if err == nil && j.check != nil {
		err = j.check(w.Size())
		unanimous = err != nil
	}
	if err == nil {
		err = j.main(ctx, w)
	}
	var exit *exitError
	switch {
	case unanimous:
		// All ranks come to this error. Those that are still joining would take the end of this rank for the reason
		// if it did not say goodbye.
		closeWorld(ctx, w, goodbyeTime)
	case err == nil, errors.As(err, &exit) && exit.err == nil:
		if closeErr := closeWorld(ctx, w, goodbyeTime); err == nil {
			err = closeErr
		}
	case errors.Is(err, mpi.ErrPeerLost), errors.Is(err, mpi.ErrRevoked), errors.Is(err, ps.ErrFailed):
		// The others fail for the same reason. They get the time to say so before this rank counts as lost, too.
		closeWorld(ctx, w, failedGoodbyeTime)
	default:
		w.Abort(codeOf(ctx, err), err.Error())
	}
	return err
}

// errNoLibrary: all ranks were told the same, and none has what it takes.
var errNoLibrary = errors.New("--collectives native: these ranks are connected by Fisterra itself, and only a system library has collectives of its own: it needs --transport mpi")

// configure sets how collectives behave.
func (j *job) configure(w *mpi.World, log *slog.Logger) error {
	cfg := collective.Config{
		Library:    collectiveLibraries[j.connect.collectives],
		StallAfter: orNever(j.connect.stallAfter),
		Log:        log.With("rank", w.Rank()),
	}
	if _, ok := w.Comm().Native(); !ok && cfg.Library == collective.LibraryAlways {
		return &exitError{exitAbsent, errNoLibrary}
	}
	if err := j.connect.readSite(&cfg); err != nil {
		return err
	}
	return collective.Configure(w.Comm(), cfg)
}

func closeWorld(ctx context.Context, w *mpi.World, within time.Duration) error {
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	return w.Close(bye)
}

const (
	// goodbyeTime bounds how long a rank waits at the end for the others,
	// failedGoodbyeTime how long after a failure.
	goodbyeTime       = 60 * time.Second
	failedGoodbyeTime = 2 * time.Second
)

// initError gives a failed start its exit code: what the user asked for
// wrongly, what the machine lacks, that ranks did not come, or a failure.
func initError(err error) error {
	switch {
	case errors.Is(err, mpi.ErrStartTimeout): // also where it is the launcher that has kept this rank waiting
		return &exitError{exitTimeout, fmt.Errorf("start: %w", err)}
	case errors.Is(err, mpi.ErrLauncher), errors.Is(err, mpi.ErrLayout):
		return usageError(err)
	case errors.Is(err, mpi.ErrTransport):
		return &exitError{exitAbsent, err}
	}
	return fmt.Errorf("start: %w", err)
}
