// Command sleep is the smallest program for a parameter server: the workers share a global step that ps 0 keeps. In
// each step a worker sleeps and adds 1 to it, and all stop when it reaches --last. Start it with
//
//	go build -o sleep ./examples/sleep
//	fisterra run -n 4 -- ./sleep --step 1s
//	srun -n 4 ./sleep
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
	"github.com/fisterra-hpc/fisterra/slurm"
	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := 0
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "sleep:", err)
		code = 1
	}
	stop()
	os.Exit(code)
}

type options struct {
	servers int
	step    time.Duration
	stop    ps.Stop
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	var o options
	flags := pflag.NewFlagSet("sleep", pflag.ContinueOnError)
	flags.IntVar(&o.servers, "ps", 1, "number of parameter servers; the other ranks are workers")
	flags.DurationVar(&o.step, "step", 10*time.Second, "how long a step sleeps")
	flags.Int64Var(&o.stop.LastStep, "last", 10, "the global step at which all stop")
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil // it has been printed
	} else if err != nil {
		return err
	}
	if o.stop.LastStep < 1 {
		return fmt.Errorf("--last %d: want a step from 1", o.stop.LastStep)
	}
	world, err := mpi.Init(ctx, &mpi.Config{})
	if err != nil {
		return err
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		world.Close(bye)
	}()
	layout, err := world.Layout()
	if err != nil {
		return err
	}
	roles, err := slurm.CountRoles(o.servers, world.Size()-o.servers, slurm.First, layout)
	if err != nil {
		return err
	}
	cluster, err := ps.ClusterOf(world, roles)
	if err != nil {
		return err
	}
	cfg := ps.Config{Comm: world.Comm(), Cluster: cluster, Rule: ps.Rule{Rate: 1}, Log: slog.New(slog.NewTextHandler(log, nil))}
	fmt.Fprintf(out, "I am %s, rank %d on %s\n", cluster.Role(world.Rank()), world.Rank(), world.Host(world.Rank()))
	if slices.Contains(cluster.Servers, world.Rank()) {
		server, err := ps.NewServer(cfg)
		if err != nil {
			return err
		}
		_, err = server.Serve(ctx)
		return err
	}
	return work(ctx, cfg, o, out)
}

func work(ctx context.Context, cfg ps.Config, o options, out io.Writer) error {
	w, err := ps.NewWorker(cfg)
	if err != nil {
		return err
	}
	joined, err := w.AddStep(ctx, 0)
	for now := joined; err == nil && !o.stop.Reached(joined, now); {
		select {
		case <-time.After(o.step):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if now, err = w.AddStep(ctx, 1); err == nil {
			fmt.Fprintf(out, "worker %d: global step %d\n", w.Index(), now)
		}
	}
	if err != nil {
		return err
	}
	_, err = w.Finish(ctx, 0, 0)
	return err
}
