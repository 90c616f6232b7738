package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/bench"
	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// benchFlags are OSU's, plus how repetitions are timed and results printed.
type benchFlags struct {
	connectFlags
	ranks      int
	size       string
	sizes      string
	iterations int
	skip       int
	window     int
	full       bool
	validate   bool
	tail       bool
	budget     time.Duration
	format     string
	profile    profileFlag
}

func benchCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench OPERATION",
		Short: "Measure messages and collectives on this system",
		Long: `bench measures one operation with the flags and the output of the OSU micro-benchmarks. Alone it starts
its ranks on this host (-n); under srun, mpirun or fisterra run it joins.

Every result is checked before it is timed; a wrong one ends with exit code 3. The conditions (ranks,
hosts, transports and why, versions) come first: as lines that start with # (--format osu, nccl), on stderr (csv),
or in the document (json: an object with the conditions and a list "rows").`,
		Example: `  fisterra bench latency                                   two ranks on this host
  fisterra bench allreduce -n 4 --sizes 8,64K,16M --budget 200ms
  srun -N 2 --ntasks-per-node 1 fisterra bench bw -c       between two nodes`,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, op := range bench.Operations() {
		cmd.AddCommand(hearing(measureCommand(env, op)))
	}
	cmd.AddCommand(hearing(benchInitCommand(env)), hearing(benchModelCommand(env)), hearing(benchTuneCommand(env)), benchExplainCommand(env), benchScaleCommand(env))
	return cmd
}

func measureCommand(env environment, op bench.Operation) *cobra.Command {
	b := &benchFlags{}
	cmd := &cobra.Command{
		Use:   op.Name,
		Short: op.Short,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := b.options(op, cmd.Flags().Changed)
			if err != nil {
				return usageError(err)
			}
			p, err := bench.NewPrinter(env.stdout, env.stderr, bench.Format(b.format), bench.Detail{Full: b.full, Tail: b.tail, Validation: b.validate}, op)
			if err != nil {
				return usageError(err)
			}
			j := b.job(env, op, o, b.profile.around(func(ctx context.Context, w *mpi.World) error { return measure(ctx, w, p, op, o) }))
			return j.run(cmd.Context(), os.Args[1:])
		},
	}
	b.add(cmd.Flags(), op)
	return cmd
}

// add adds the flags that mean something to the operation, as OSU's programs do.
func (b *benchFlags) add(f *pflag.FlagSet, op bench.Operation) {
	f.IntVarP(&b.ranks, "ranks", "n", 2, "number of ranks to start when alone")
	if op.Most > 0 { // a barrier has no bytes
		f.StringVarP(&b.size, "message-size", "m", "", "[MIN:]MAX message size in bytes, in powers of two")
		f.StringVar(&b.sizes, "sizes", "", "message sizes in bytes, comma separated (instead of -m)")
	} else {
		f.StringVar(&b.sizes, "sizes", "0", "0: there are no bytes")
	}
	calls := "calls"
	if op.Kind == bench.Windows {
		calls = "windows of messages"
	}
	timed, before := bench.OSUCalls(op.Kind, op.Least)
	many, early := fmt.Sprint(timed), fmt.Sprint(before)
	if most, first := bench.OSUCalls(op.Kind, op.Most); most != timed {
		many, early = fmt.Sprintf("%d, %d above 8 KiB", timed, most), fmt.Sprintf("%d, %d above 8 KiB", before, first)
	}
	f.IntVarP(&b.iterations, "iterations", "i", 0, fmt.Sprintf("%s per size (default %s)", calls, many))
	f.IntVarP(&b.skip, "warmup", "x", 0, fmt.Sprintf("%s before timing, 0: none (default %s; with --budget those that find out how many fill a repetition)", calls, early))
	f.BoolVarP(&b.validate, "validation", "c", false, "check the results after timing, too, and say so in OSU's column Validation, where OSU has it")
	tail := "print the 50th, 90th and 99th percentile of single iterations"
	if op.Kind != bench.Collective { // whose calls are timed singly anyway
		tail += "; each is timed then, and holds one reading of the clock (its cost is printed)"
	}
	f.BoolVarP(&b.tail, "tail-lat", "z", false, tail)
	f.DurationVar(&b.budget, "budget", 0, "time per size: many short repetitions instead of -i; json and csv have their median and 10th and 90th percentile")
	f.StringVar(&b.format, "format", "osu", strings.Join(bench.Formats, ", "))
	switch op.Kind {
	case bench.Windows:
		f.IntVarP(&b.window, "window-size", "W", 64, "messages in flight")
	case bench.Collective:
		f.BoolVarP(&b.full, "full", "f", false, "print minimum, maximum and iterations")
	}
	b.profile.add(f)
	b.connectFlags.add(f)
}

// job is the measurement as a job, whose ranks agree on what is measured.
func (b *benchFlags) job(env environment, op bench.Operation, o bench.Options, main func(context.Context, *mpi.World) error) *job {
	return &job{env: env, connect: b.connectFlags, ranks: b.ranks, main: main,
		check:  func(ranks int) error { return benchError(op.Check(ranks, o)) },
		layout: []mpi.LayoutField{{Name: "operation", Value: op.Name}, {Name: "options", Value: fmt.Sprint(o)}}}
}

// options turns the flags into the bench's options. given reports whether the user named a flag.
func (b *benchFlags) options(op bench.Operation, given func(flag string) bool) (bench.Options, error) {
	o := bench.Options{Iterations: b.iterations, Skip: b.skip, Window: b.window, Budget: b.budget, Tail: b.tail}
	if b.validate {
		o.Check = bench.CheckEvery
	}
	if err := checkRanks(b.ranks); err != nil {
		return o, err
	}
	switch {
	case given("iterations") && b.iterations < 1:
		return o, fmt.Errorf("-i %d: at least 1 call is needed", b.iterations)
	case given("iterations") && given("budget"):
		return o, errors.New("-i and --budget exclude each other: calls are counted, or time is")
	case given("budget") && b.budget <= 0:
		return o, fmt.Errorf("--budget %v: want a time above 0, such as 100ms", b.budget)
	case b.skip < 0:
		return o, fmt.Errorf("-x %d: want a number of calls from 0 on", b.skip)
	case given("window-size") && (b.window < 1 || b.window > bench.MaxWindow):
		return o, fmt.Errorf("-W %d: want 1 to %d messages in flight", b.window, bench.MaxWindow)
	case !slices.Contains(bench.Formats, b.format):
		return o, fmt.Errorf("--format %q: want one of %s", b.format, strings.Join(bench.Formats, ", "))
	case given("warmup") && b.skip == 0:
		o.Skip = -1 // none, where 0 would be the default
	}
	least, most := op.Least, op.Most
	if b.size != "" && b.sizes != "" {
		return o, errors.New("-m and --sizes exclude each other")
	}
	if b.sizes != "" {
		var err error
		o.Sizes, err = parseSizes(b.sizes)
		return o, err
	}
	if b.size != "" {
		low, high, both := strings.Cut(b.size, ":")
		if !both {
			low, high = "", low
		}
		var err error
		if low != "" {
			if least, err = parseBytes(low); err != nil {
				return o, fmt.Errorf("-m %s: %w", b.size, err)
			}
		}
		if high != "" || low == "" {
			if most, err = parseBytes(high); err != nil {
				return o, fmt.Errorf("-m %s: %w", b.size, err)
			}
		}
		if least > most {
			return o, fmt.Errorf("-m %s: the smallest size is larger than the largest", b.size)
		}
	}
	o.Sizes = bench.PowersOfTwo(least, most)
	return o, nil
}

// measure is what each rank does.
func measure(ctx context.Context, w *mpi.World, p *bench.Printer, op bench.Operation, o bench.Options) error {
	if err := collective.Barrier(ctx, w.Comm()); err != nil { // ranks that have met know their path
		return err
	}
	if w.Rank() == 0 {
		p.Begin(conditions(w, op, o))
		defer p.End()
	}
	return benchError(op.Run(ctx, w.Comm(), o, p.Row))
}

// benchError gives an error of package bench its exit code.
func benchError(err error) error {
	switch {
	case errors.Is(err, bench.ErrUsage):
		return usageError(err)
	case errors.Is(err, bench.ErrWrong):
		return &exitError{exitWrong, err}
	case errors.Is(err, mpi.ErrTransport):
		return &exitError{exitAbsent, err}
	}
	return err
}

func conditions(w *mpi.World, op bench.Operation, o bench.Options) bench.Conditions {
	c := bench.Conditions{Title: op.Title, Version: versionText(), Ranks: w.Size(), Hosts: hostCount(w),
		Launcher: w.Launcher(), GOMAXPROCS: runtime.GOMAXPROCS(0), Chosen: choiceLine(w), Transports: transportLines(w)}
	if o.Tail || op.Kind == bench.Collective {
		c.Clock = bench.ClockMicroseconds()
	}
	return c
}

func hostCount(w *mpi.World) int {
	seen := map[string]bool{}
	for r := range w.Size() {
		seen[w.Host(r)] = true
	}
	return len(seen)
}

// choiceLine says which transport was chosen for the world, and why.
func choiceLine(w *mpi.World) string {
	transport, reason := w.Choice()
	return fmt.Sprintf("transport chosen: %s (%s)", transport, reason)
}

// transportLines says how this rank reaches the others, ranks with the same answer in one line.
func transportLines(w *mpi.World) []string {
	var order []mpi.TransportInfo
	count := map[mpi.TransportInfo]int{}
	for _, t := range w.Transports() {
		if t.Rank == w.Rank() {
			continue
		}
		t.Rank = 0
		if count[t] == 0 {
			order = append(order, t)
		}
		count[t]++
	}
	lines := make([]string, len(order))
	for i, t := range order {
		lines[i] = fmt.Sprintf("transport %s (%s) to %d of %d ranks", t.Name, t.Reason, count[t], w.Size()-1)
		if t.Path != "" {
			lines[i] += ", large messages by " + t.Path
		}
	}
	return lines
}
