package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fisterra-hpc/fisterra/bench"
	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// siteFlags are those of the commands that measure or explain plans.
type siteFlags struct {
	connectFlags
	ranks  int
	ops    string
	sizes  string
	file   string
	budget time.Duration
}

// run has ranks measure.
func (s *siteFlags) run(ctx context.Context, env environment, what string, main func(context.Context, *mpi.World) error) error {
	if err := checkRanks(s.ranks); err != nil {
		return err
	}
	if s.ranks < 2 {
		return usageError(fmt.Errorf("-n %d: %s measures what passes between ranks, want at least 2", s.ranks, what))
	}
	if s.collectives != "auto" {
		return usageError(fmt.Errorf("--collectives %s: model and tune measure all that there are", s.collectives))
	}
	return s.job(env, what, main).run(ctx, os.Args[1:])
}

// job is what ranks measure as a job, on which they agree.
func (s *siteFlags) job(env environment, what string, main func(context.Context, *mpi.World) error) *job {
	return &job{env: env, connect: s.connectFlags, ranks: s.ranks, main: main,
		layout: []mpi.LayoutField{{Name: "operation", Value: what}, {Name: "options", Value: fmt.Sprint(s.ops, s.sizes, s.budget)}}}
}

// measurable are the cases that were asked for, and an error if they cannot be measured.
func (s *siteFlags) measurable() (kinds []plan.Kind, sizes []int, err error) {
	if err = s.checkBudget(); err == nil {
		kinds, sizes, err = s.cases()
	}
	if err == nil {
		err = benchError(bench.CheckCases(names(kinds), sizes))
	}
	return kinds, sizes, err
}

func (s *siteFlags) checkBudget() error {
	if s.budget > 0 {
		return nil
	}
	return usageError(fmt.Errorf("--budget %v: want a time above 0, such as 50ms", s.budget))
}

// cases are the collectives and sizes that were asked for; an error is one of usage.
func (s *siteFlags) cases() (kinds []plan.Kind, sizes []int, err error) {
	if kinds, err = s.kinds(); err == nil {
		sizes, err = parseSizes(s.sizes)
	}
	if err != nil {
		return nil, nil, usageError(err)
	}
	return kinds, sizes, nil
}

// kinds reads the names of collectives.
func (s *siteFlags) kinds() ([]plan.Kind, error) {
	var kinds []plan.Kind
	names, err := commaList("--op", s.ops)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		k, err := plan.ParseKind(name)
		if err != nil {
			return nil, fmt.Errorf("--op: %w", err)
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

// write has a rank measure, and at rank 0 writes the site file.
func (s *siteFlags) write(w *mpi.World, measure func() (*collective.Site, error)) error {
	if w.Rank() != 0 || s.file == "" {
		_, err := measure()
		return err
	}
	return writeFlagFile("--file", s.file, func(out io.Writer) error {
		site, err := measure()
		if err != nil {
			return err
		}
		return site.Write(out)
	})
}

// kept is the site that the measured figures are added to: that of --site with its rules, or one without any. It is
// read before measuring, which may take long.
func (s *siteFlags) kept() (*collective.Site, error) {
	cfg := collective.Config{Site: &collective.Site{Name: "measured"}}
	err := s.readSite(&cfg)
	return cfg.Site, err
}

func benchModelCommand(env environment) *cobra.Command {
	s := &siteFlags{}
	check := false
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Measure α, β and γ here, by which plans are priced",
		Long: `model measures α, β and γ. With --check it measures every plan of the collectives (--op) at every size
(--sizes) by turns with them, prints predicted and measured times, and fails with status 4 unless
each chosen plan takes at most 15 % longer than the best (25 % with more than two ranks) and, with two
ranks, 90 % of the predictions are within 30 % of the measured times. Two ranks of one host, with a processor each,
wait for a virtual machine's processors to be where they mostly are, for as long as they measure at most.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			what, measure := "model", s.model
			if check {
				kinds, sizes, err := s.measurable()
				if err != nil {
					return err
				}
				what, measure = "model --check", func(ctx context.Context, env environment, w *mpi.World) (*plan.Model, error) {
					return s.check(ctx, env, w, kinds, sizes)
				}
			} else {
				if err := s.checkBudget(); err != nil {
					return err
				}
				for _, name := range []string{"op", "sizes"} {
					if cmd.Flags().Changed(name) {
						return usageError(fmt.Errorf("--%s without --check: only that measures plans", name))
					}
				}
			}
			return s.run(cmd.Context(), env, what, func(ctx context.Context, w *mpi.World) error {
				return s.write(w, func() (*collective.Site, error) {
					site, err := s.kept()
					if err != nil {
						return nil, err
					}
					m, err := measure(ctx, env, w)
					if err != nil {
						return nil, err
					}
					site.SetModel(m, w.Comm())
					return site, nil
				})
			})
		},
	}
	f := cmd.Flags()
	s.measureFlags(f)
	f.BoolVar(&check, "check", false, "compare predictions and choices with measured times")
	s.defaults(f, "op", "allreduce,bcast,reduce,allgather,reduce_scatter,alltoall,gather,scatter,barrier,scan")
	s.defaults(f, "sizes", "8,256,4K,64K,1M,4M")
	return cmd
}

// defaults changes the default of a flag.
func (s *siteFlags) defaults(f *pflag.FlagSet, name, value string) {
	l := f.Lookup(name)
	l.DefValue = value
	_ = l.Value.Set(value) // a string takes any
}

// model measures a model and prints it.
func (s *siteFlags) model(ctx context.Context, env environment, w *mpi.World) (*plan.Model, error) {
	m, err := bench.MeasureModel(ctx, w.Comm(), "measured", s.budget)
	if err == nil && w.Rank() == 0 {
		printModel(env, m)
	}
	return m, benchError(err)
}

// check measures, by turns, a model and the plans that the model prices, and prints both.
func (s *siteFlags) check(ctx context.Context, env environment, w *mpi.World, kinds []plan.Kind, sizes []int) (*plan.Model, error) {
	m, k, err := bench.CheckModel(ctx, w.Comm(), "measured", names(kinds), bench.Options{Sizes: sizes, Budget: s.budget})
	if err != nil {
		return nil, benchError(err)
	}
	if w.Rank() == 0 {
		printModel(env, m)
		t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\ncollective\tbytes\tchosen\tpredicted (µs)\tmeasured (µs)\tratio\tbest\tmeasured (µs)\tloss")
		for _, x := range k.Points {
			fmt.Fprintf(t, "%s\t%d\t%s\t%.2f\t%.2f\t%.2f\t%s\t%.2f\t%.0f %%\n", x.Op, x.Bytes, x.Chosen, x.Predicted, x.Of(x.Chosen), x.Ratio(),
				x.Best, x.Of(x.Best), 100*x.Loss())
		}
		t.Flush()
		fmt.Fprintln(env.stdout, k)
	}
	if !k.Good() { // all ranks find the same, and part in peace
		if w.Rank() == 0 {
			fmt.Fprintln(env.stderr, "fisterra: the model is too far from what is measured here")
		}
		return nil, &exitError{code: exitWorse}
	}
	return m, nil
}

// caseFlags are those that cases reads.
func (s *siteFlags) caseFlags(f *pflag.FlagSet) {
	f.StringVar(&s.ops, "op", "allreduce", "collectives, comma separated")
	f.StringVar(&s.sizes, "sizes", "8,4K,64K,1M,4M", "sizes in bytes, of the vector, or of one rank's share for allgather, alltoall, gather and scatter (as bench OPERATION has them); comma separated")
}

// measureFlags are those of the commands that measure.
func (s *siteFlags) measureFlags(f *pflag.FlagSet) {
	s.caseFlags(f)
	s.add(f)
	f.IntVarP(&s.ranks, "ranks", "n", 2, "number of ranks to start when alone")
	f.StringVar(&s.file, "file", "", "site file to write, in place of what is there; it keeps the rules of --site, which may be the same file")
	f.DurationVar(&s.budget, "budget", 300*time.Millisecond, "time per plan and size, and for each of the model's figures of messages, some 170")
}

func printModel(env environment, m *plan.Model) {
	t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "bytes\thost one way (µs)\thost exchange\tby pieces\tgiven\tby reading\tmapped\tnetwork one way\tnetwork exchange\treduce\treduce a message\texchange and reduce\texchange of old data\tgathered\tscattered\tcopy\t")
	for _, p := range m.Combine {
		n := p.Bytes
		fmt.Fprintf(t, "%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", n, 1e6*m.Host.OneWay.At(n), 1e6*m.Host.Exchange.At(n),
			1e6*m.Pieces.At(n), 1e6*m.Given.At(n), 1e6*m.Read.At(n), 1e6*m.Mapped.At(n), 1e6*m.Net.OneWay.At(n), 1e6*m.Net.Exchange.At(n), 1e6*p.Seconds, 1e6*m.Folded.At(n), 1e6*m.Merged.At(n),
			1e6*m.Settled.At(n), 1e6*m.Gathered.At(n), 1e6*m.Scattered.At(n), 1e6*m.Copy.At(n))
	}
	t.Flush()
	fmt.Fprintf(env.stdout, "α %.2f µs, β %.3f ns/B on one host; α %.2f µs, β %.3f ns/B between hosts; γ %.3f ns/B\n",
		1e6*m.Host.OneWay.Alpha(), 1e9*m.Host.OneWay.Beta(), 1e6*m.Net.OneWay.Alpha(), 1e9*m.Net.OneWay.Beta(), 1e9*m.Combine.Beta())
	if m.Switch == 0 {
		fmt.Fprintln(env.stdout, "the two ranks took turns on one processor, which these figures hold: they are for ranks that share one")
	}
}

func benchTuneCommand(env environment) *cobra.Command {
	s := &siteFlags{}
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Measure every plan and write a site file with the best",
		Long: `tune measures α, β and γ, then every plan of the collectives at every size, prints the time of the plan
that the model picks beside its prediction and the best, and with --file writes what was best. Training and
measuring read such a file by --site; a rule holds for the number of ranks and hosts, and the transport, that it
was measured with, α, β and γ for the transport. With --transport mpi the system library's own collectives compete, too.
Two ranks wait for their processors as with model.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kinds, sizes, err := s.measurable()
			if err != nil {
				return err
			}
			return s.run(cmd.Context(), env, "tune", func(ctx context.Context, w *mpi.World) error {
				return s.write(w, func() (*collective.Site, error) { return s.tune(ctx, env, w, kinds, sizes) })
			})
		},
	}
	s.measureFlags(cmd.Flags())
	return cmd
}

// tune measures plans and what prices them, and prints their times.
func (s *siteFlags) tune(ctx context.Context, env environment, w *mpi.World, kinds []plan.Kind, sizes []int) (*collective.Site, error) {
	site, err := s.kept()
	if err != nil {
		return nil, err
	}
	m, err := bench.MeasureModel(ctx, w.Comm(), "measured", s.budget)
	if err != nil {
		return nil, benchError(err)
	}
	site.SetModel(m, w.Comm())
	points, err := bench.Tune(ctx, w.Comm(), m, names(kinds), bench.Options{Sizes: sizes, Budget: s.budget})
	if err != nil {
		return nil, benchError(err)
	}
	t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "collective\tbytes\tchosen\tpredicted (µs)\tmeasured (µs)\tbest\tmeasured (µs)\tall (µs)")
	for _, x := range points {
		fmt.Fprintf(t, "%s\t%d\t%s\t%.2f\t%.2f\t%s\t%.2f\t%s\n", x.Op, x.Bytes, x.Chosen, x.Predicted, x.Of(x.Chosen), x.Best, x.Of(x.Best), planTimes(x))
		site.Add(x.Rule())
	}
	if w.Rank() == 0 {
		t.Flush()
	}
	return site, nil
}

func names(kinds []plan.Kind) []string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.String())
	}
	return all
}

// planTimes lists what each plan took.
func planTimes(x bench.Tuned) string {
	all := make([]string, len(x.Times))
	for i, t := range x.Times {
		all[i] = fmt.Sprintf("%s=%.2f", t.Plan, t.Median)
	}
	return strings.Join(all, " ")
}

func benchExplainCommand(env environment) *cobra.Command {
	s := &siteFlags{}
	var perHost, cores int
	var distribution distributionFlag
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Print which plan a collective takes, why, its price, and the runners-up",
		Long: `explain prints which plan a collective takes with these flags, why, its predicted time, and those of the other plans.
It starts nothing: the ranks and hosts need not exist. The bytes that it prints are those of all ranks' shares
together. Prices are those of the model in --site's file if it was measured over --transport, else the default's.`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			kinds, sizes, err := s.cases()
			if err != nil {
				return err
			}
			if err := checkRanks(s.ranks); err != nil {
				return err
			}
			if perHost < 0 || cores < 0 {
				return usageError(fmt.Errorf("--ranks-per-host %d --cores-per-host %d: want at least 0", perHost, cores))
			}
			if perHost == 0 || perHost > s.ranks {
				perHost = s.ranks
			}
			cyclic, err := distribution.cyclic()
			if err != nil {
				return err
			}
			if err := s.checkPlanning(); err != nil {
				return usageError(err)
			}
			at := collective.Place{Ranks: s.ranks, RanksPerHost: perHost, Cyclic: cyclic, Transport: s.transport}
			if at.Transport == "auto" {
				at.Transport = "shm"
			}
			if cores > 0 {
				at.RanksPerCore = float64(perHost) / float64(cores)
			}
			cfg := collective.Config{Library: collectiveLibraries[s.collectives]}
			if cfg.Library == collective.LibraryAlways && at.Transport != "mpi" {
				return &exitError{exitAbsent, errNoLibrary}
			}
			if err := s.readSite(&cfg); err != nil {
				return err
			}
			for _, k := range kinds {
				for _, n := range bench.SizesOf(k, sizes) {
					fmt.Fprintln(env.stdout, collective.ExplainFor(k, bench.TotalBytes(k, n, s.ranks), at, cfg))
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	s.caseFlags(f)
	s.addPlanning(f)
	f.IntVarP(&s.ranks, "ranks", "n", 2, "number of ranks")
	f.IntVar(&perHost, "ranks-per-host", 0, "ranks that share a host (0: all)")
	f.IntVar(&cores, "cores-per-host", 0, "processors of a host (0: one for each rank)")
	distribution.add(f)
	return cmd
}
