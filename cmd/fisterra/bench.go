package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/bench"
	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/spf13/cobra"
)

// benchFlags are OSU's, plus how repetitions are timed and results printed.
type benchFlags struct {
	connectFlags
	ranks       int
	size        string
	sizes       string
	iterations  int
	skip        int
	window      int
	full        bool
	validate    bool
	percentiles bool
	budget      time.Duration
	format      string
}

func benchCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench OPERATION",
		Short: "Measure messages and collectives on this system",
		Long: `bench measures one operation with the flags and the output of the OSU micro-benchmarks. Alone it starts
its ranks on this host (-n); under srun, mpirun or fisterra run it joins.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(fmt.Errorf("unknown operation %q; fisterra bench --help lists them", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, op := range bench.Operations() {
		cmd.AddCommand(measureCommand(env, op))
	}
	cmd.AddCommand(benchInitCommand(env), benchModelCommand(env), benchTuneCommand(env), benchExplainCommand(env), benchScaleCommand(env))
	return cmd
}

func measureCommand(env environment, op bench.Operation) *cobra.Command {
	b := &benchFlags{}
	cmd := &cobra.Command{
		Use:   op.Name,
		Short: op.Short,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := b.options(op)
			if err != nil {
				return usageError(err)
			}
			j := &job{env: env, connect: b.connectFlags, ranks: b.ranks,
				layout: []mpi.LayoutField{{Name: "operation", Value: op.Name}, {Name: "options", Value: fmt.Sprint(o)}},
				main:   func(ctx context.Context, w *mpi.World) error { return b.measure(ctx, env, w, op, o) }}
			return j.run(cmd.Context(), os.Args[1:])
		},
	}
	f := cmd.Flags()
	f.IntVarP(&b.ranks, "ranks", "n", 2, "number of ranks to start when alone")
	f.StringVarP(&b.size, "message-size", "m", "", "[MIN:]MAX message size in bytes, in powers of two")
	f.StringVar(&b.sizes, "sizes", "", "message sizes in bytes, comma separated (instead of -m)")
	f.IntVarP(&b.iterations, "iterations", "i", 0, "calls per size (default 10000, 1000 above 8 KiB)")
	f.IntVarP(&b.skip, "warmup", "x", 0, "calls before timing (default 200, 10 above 8 KiB)")
	f.IntVarP(&b.window, "window-size", "W", 64, "messages in flight")
	f.BoolVarP(&b.full, "full", "f", false, "print minimum, maximum and iterations")
	f.BoolVarP(&b.validate, "validation", "c", false, "check the results after timing, too")
	f.BoolVarP(&b.percentiles, "tail-lat", "z", false, "print percentiles of the repetitions")
	f.DurationVar(&b.budget, "budget", 0, "time per size: many short repetitions and their median, instead of -i")
	f.StringVar(&b.format, "format", "osu", strings.Join(bench.Formats, ", "))
	b.add(f)
	return cmd
}

// options turns the flags into the bench's options.
func (b *benchFlags) options(op bench.Operation) (bench.Options, error) {
	o := bench.Options{Iterations: b.iterations, Skip: b.skip, Window: b.window, Budget: b.budget}
	if b.validate {
		o.Check = bench.CheckEvery
	}
	if b.ranks < 1 {
		return o, fmt.Errorf("-n %d: at least 1 rank is needed", b.ranks)
	}
	least, most := op.Least, op.Most
	if b.size != "" && b.sizes != "" {
		return o, errors.New("-m and --sizes exclude each other")
	}
	if b.sizes != "" {
		for _, w := range commaList(b.sizes) {
			n, err := parseBytes(w)
			if err != nil {
				return o, fmt.Errorf("--sizes %s: %w", b.sizes, err)
			}
			o.Sizes = append(o.Sizes, n)
		}
		return o, nil
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
		if most, err = parseBytes(high); err != nil {
			return o, fmt.Errorf("-m %s: %w", b.size, err)
		}
		if least > most {
			return o, fmt.Errorf("-m %s: the smallest size is larger than the largest", b.size)
		}
	}
	o.Sizes = bench.PowersOfTwo(least, most)
	return o, nil
}

// parseBytes reads a size: a number, with K, M or G for powers of 1024.
func parseBytes(text string) (int, error) {
	digits, shift := text, 0
	if n := len(text); n > 0 {
		if i := strings.IndexByte("KMG", text[n-1]&^0x20); i >= 0 {
			digits, shift = text[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > 1<<40>>shift {
		return 0, fmt.Errorf("%q is not a size in bytes (such as 4096, 64K, 4M)", text)
	}
	return n << shift, nil
}

func (b *benchFlags) measure(ctx context.Context, env environment, w *mpi.World, op bench.Operation, o bench.Options) error {
	detail := bench.Brief
	switch {
	case b.percentiles:
		detail = bench.Percentiles
	case b.full:
		detail = bench.Full
	}
	p, err := bench.NewPrinter(env.stdout, bench.Format(b.format), detail, op.Name)
	if err != nil {
		return usageError(err)
	}
	if err := collective.Barrier(ctx, w.Comm()); err != nil { // ranks that have met know their path
		return err
	}
	if w.Rank() == 0 {
		p.Comment("Fisterra %s, %s", op.Title, versionText())
		p.Comment("%d ranks on %d hosts (%s), GOMAXPROCS %d", w.Size(), hostCount(w), w.Launcher(), runtime.GOMAXPROCS(0))
		for _, line := range transportLines(w) {
			p.Comment("%s", line)
		}
	}
	err = op.Run(ctx, w.Comm(), o, p.Row)
	switch {
	case errors.Is(err, bench.ErrUsage):
		return usageError(err)
	case errors.Is(err, bench.ErrWrong):
		return &exitError{exitWrong, err}
	}
	return err
}

func hostCount(w *mpi.World) int {
	seen := map[string]bool{}
	for r := range w.Size() {
		seen[w.Host(r)] = true
	}
	return len(seen)
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
