// Command fisterra trains models with a parameter server or with collectives,
// starts ranks, and tells what a task's place in a job is.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes; README.md has what they mean.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitWrong   = 3
	exitWorse   = 4
	exitAbsent  = 69
	exitTimeout = 124

	signalled = 128 // and a signal's number: ended by that
)

// exitError is an error with the code the process exits with. A nil err has
// been reported already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitUsage, err}
}

// directoryError is for files that cannot be written or read where the user said: a usage error, unless it is the
// file system that fails.
func directoryError(err error) error {
	for _, host := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ESTALE} {
		if errors.Is(err, host) {
			return err
		}
	}
	return usageError(err)
}

// mayBeEmpty is the annotation of flags whose empty value means something.
const mayBeEmpty = "fisterra_may_be_empty"

// noEmptyFlag refuses a flag with an empty value, as a shell variable that is not set gives it. It would count as
// not given, and a run would save nowhere.
func noEmptyFlag(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if _, may := f.Annotations[mayBeEmpty]; f.Value.String() == "" && !may {
			err = fmt.Errorf("--%s \"\": it has no value; leave the flag out for what it is by default", f.Name)
		}
	})
	return err
}

func main() { os.Exit(run(os.Args[1:], system())) }

// environment is what the command touches of the world around it.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(string) (string, bool)
}

func system() environment {
	return environment{os.Stdin, os.Stdout, os.Stderr, os.LookupEnv}
}

func run(args []string, env environment) int {
	out := &stdout{w: env.stdout}
	env.stdout = out
	root := newRoot(env)
	ctx, stop := context.Background(), func() {}
	if cmd, _, err := root.Find(args); err == nil && hears(cmd) {
		ctx, stop = untilAsked(env.lookup)
	}
	defer stop()
	root.SetArgs(args)
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	err := root.ExecuteContext(ctx)
	if failed := out.failure(); err == nil && failed != nil {
		err = fmt.Errorf("standard output: %w", failed)
	}
	var e *exitError
	if err != nil && !(errors.As(err, &e) && e.err == nil) {
		fmt.Fprintf(env.stderr, "fisterra: %v\n", err)
	}
	return codeOf(ctx, err)
}

// codeOf is the exit code for an error. An error that SIGTERM caused, by ending ctx, is no fault of the command.
func codeOf(ctx context.Context, err error) int {
	var e *exitError
	coded := errors.As(err, &e)
	switch {
	case err == nil:
		return exitOK
	case coded && (e.err == nil || e.code > signalled):
		return e.code
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return signalled + int(syscall.SIGTERM)
	case coded:
		return e.code
	}
	return exitFailed
}

func newRoot(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "fisterra",
		Short: "Train with parameter servers or collectives on an HPC cluster, or on this machine",
		Long: `Fisterra trains models with a parameter server, or with collectives, on an HPC cluster.
Under srun, mpirun or mpiexec it takes its ranks from the launcher; alone it starts them itself.`,
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          onlyCommands,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(noEmptyFlag(cmd.Flags()))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Flags().Bool("version", false, "print the version") // without -v, which is --verbose elsewhere
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddCommand(
		hearing(trainCommand(env)),
		hearing(runCommand(env)),
		benchCommand(env),
		hearing(specCommand(env)),
		hostsCommand(env),
		templateCommand(env),
		hearing(infoCommand(env)),
		versionCommand(env),
		hearing(guardCommand(env)),
	)
	strict(root)
	return root
}
