package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/launch"
	"github.com/spf13/cobra"
)

func runCommand(env environment) *cobra.Command {
	var (
		ranks   int
		label   bool
		timeout time.Duration
		out     string
	)
	cmd := &cobra.Command{
		Use:   "run -n N [flags] -- PROGRAM [ARGUMENTS]",
		Short: "Start a program's ranks on this host",
		Long: `run starts N processes of a program on this host and waits for them. The first that fails
ends the rest (SIGTERM, then SIGKILL after 5 s). The exit code is the highest of the ranks that
ended by themselves, 128+n for signal n, 124 when --timeout ends the job, 130 after Ctrl-C and
143 after SIGTERM, which end the ranks gracefully; a second one kills them (of SIGTERM not in a job of
Slurm's). It is 1 where a log of --out could not be written. A terminal that hangs up (129) and an output
that nobody reads any more, as of "| head" (141), end them gracefully, too. SIGUSR1 and SIGUSR2 go on to the ranks.
Each process gets FISTERRA_RANK, FISTERRA_SIZE, FISTERRA_LOCAL_RANK and FISTERRA_LOCAL_SIZE; the job's
secret reaches it by an inherited descriptor. Rank 0 has this command's standard input, the others an empty one.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("run: no program; usage: fisterra run -n N -- PROGRAM [ARGUMENTS]"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkRanks(ranks); err != nil {
				return err
			}
			if timeout < 0 {
				return usageError(fmt.Errorf("--timeout %v: want a time, or 0 for none", timeout))
			}
			cfg := launch.Config{Ranks: ranks, Program: args[0], Args: args[1:], Stdin: env.stdin, Timeout: timeout}
			if label {
				cfg.Label = launch.ByRank
			}
			if out != "" {
				cfg.Tee = logs(out, func(rank int) string { return fmt.Sprintf("rank%d", rank) })
			}
			o, err := launchHere(cmd.Context(), env, cfg)
			if err != nil {
				return err
			}
			if o.Code != 0 {
				return &exitError{code: o.Code}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.IntVarP(&ranks, "ranks", "n", 1, "number of ranks")
	f.BoolVarP(&label, "label", "l", false, "put the rank in front of each line of output")
	f.DurationVar(&timeout, "timeout", 0, "end the job after this time (0: never)")
	f.StringVar(&out, "out", "", "directory for each rank's output, rank0.log ...")
	return cmd
}

// launchHere runs a job with this process's outputs, signals and guard.
func launchHere(ctx context.Context, env environment, cfg launch.Config) (launch.Outcome, error) {
	asked, unread, stop := endOfRanks(ctx, env.lookup)
	defer stop()
	cfg.Interrupts = asked
	forward := make(chan os.Signal, 4)
	signal.Notify(forward, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(forward)
	cfg.Forward = forward
	if cfg.Stdout == nil {
		cfg.Stdout = env.stdout
	}
	var nobody atomic.Bool // reads the output
	tell := func() {
		nobody.Store(true)
		unread()
	}
	cfg.Stdout = &rankOutput{cfg.Stdout, tell}
	cfg.Stderr = &rankOutput{env.stderr, tell}
	cfg.Notify = func(s string) { fmt.Fprintln(env.stderr, "fisterra:", s) }
	if self, err := os.Executable(); err == nil {
		cfg.Guard = []string{self, guardName}
	}
	o, err := launch.Run(context.WithoutCancel(ctx), cfg) // SIGTERM is in asked
	// The ranks may have ended before they were asked to.
	if err == nil && o.Code == 0 && nobody.Load() {
		o.Code, o.Interrupted = signalled+int(syscall.SIGPIPE), syscall.SIGPIPE
	}
	return o, startError(err)
}

// startError makes it a usage error if ranks cannot be started as they were asked for: there is no such program or
// file, it cannot be run, or there are never so many ranks. That the host has too little of something, such as
// processes, is no mistake of the user.
func startError(err error) error {
	for _, usage := range []error{launch.ErrRanks, exec.ErrNotFound, exec.ErrDot, fs.ErrNotExist, fs.ErrPermission,
		syscall.EROFS, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOEXEC, syscall.ELOOP, syscall.ENAMETOOLONG} {
		if errors.Is(err, launch.ErrStart) && errors.Is(err, usage) {
			return usageError(err)
		}
	}
	return err
}

// logs opens a log per rank in a directory that it makes.
func logs(dir string, name func(rank int) string) func(rank int) (io.WriteCloser, error) {
	return func(rank int) (io.WriteCloser, error) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
		log, err := os.Create(filepath.Join(dir, name(rank)+".log"))
		if err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
		return log, nil
	}
}

// guardName is the hidden command that ends the ranks when the launcher is killed.
const guardName = "guard-ranks"

func guardCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:    guardName,
		Hidden: true,
		Args:   cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			// Signals that are sent to all processes of the command's name are not meant for the guard.
			signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
			launch.RunGuard(env.stdin)
		},
	}
}
