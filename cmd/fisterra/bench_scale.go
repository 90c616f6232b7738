package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fisterra-hpc/fisterra/bench"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi/launch"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// nodeBound is the bound with shared links, "-" where none is known.
func nodeBound(x bench.ScalePoint) string {
	if x.Shared == 0 {
		return "-"
	}
	return fmt.Sprintf("%v", x.Shared)
}

// distributionFlag is how ranks lie on nodes, in the words of srun's option.
type distributionFlag string

func (d *distributionFlag) add(f *pflag.FlagSet) {
	f.StringVar((*string)(d), "distribution", "block", "block (ranks fill one node after the other), cyclic (they are dealt to the nodes in turn)")
}

func (d *distributionFlag) cyclic() (bool, error) {
	if *d != "block" && *d != "cyclic" {
		return false, usageError(fmt.Errorf("--distribution %q: want block or cyclic", *d))
	}
	return *d == "cyclic", nil
}

// scaleFlags say what is simulated.
type scaleFlags struct {
	ranks, op, network, sizes, plan, plot, format string
	distribution                                  distributionFlag
	perNode                                       int
}

// simulation is what scaleFlags ask for.
type simulation struct {
	bench.ScaleOptions
	cyclic bool
	ranks  []int
	sizes  []int // bytes
}

func benchScaleCommand(env environment) *cobra.Command {
	s := &scaleFlags{}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Simulate a collective on many ranks of a cluster network",
		Long: `scale runs the program's own engine, plans and executor over a simulated network in virtual time, on one
core of this machine. Messages carry sizes, not bytes. It prints the simulated time against the lower
bound of the model, ⌈log₂P⌉α + 2(P−1)/P·nβ + (P−1)/P·nγ for allreduce. That bound gives each rank a link of its
own and lets nothing overlap or stay within a node, so times below it are possible; the column "node bound" is
what the ranks of a node need at least, who share their node's link and copy for themselves. Below the table
a chart shows the same times, and --plot draws them.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			x, err := s.simulation()
			if err != nil {
				return err
			}
			if s.plot == "" {
				_, err := s.simulate(cmd.Context(), env, x)
				return err
			}
			return writeFlagFile("--plot", s.plot, func(out io.Writer) error {
				points, err := s.simulate(cmd.Context(), env, x)
				if err != nil {
					return err
				}
				return bench.PlotScale(out, fmt.Sprintf("%s on %s, simulated; dashed: lower bound", s.op, s.network), points)
			})
		},
	}
	s.add(cmd.Flags())
	return cmd
}

func (s *scaleFlags) add(f *pflag.FlagSet) {
	f.StringVar(&s.ranks, "ranks", "16,256,4096", "numbers of ranks, comma separated")
	f.StringVar(&s.op, "op", "allreduce", "allreduce, bcast, reduce, barrier, scan, exscan; gather, scatter, allgather, reduce_scatter, alltoall (sizes of all blocks together)")
	f.StringVar(&s.network, "network", "fdr", "fdr (InfiniBand FDR, 24 ranks a node), hdr100 (64 ranks a node)")
	f.IntVar(&s.perNode, "ranks-per-node", 0, "ranks that share a node and its link (0: as the network has)")
	s.distribution.add(f)
	f.StringVar(&s.sizes, "sizes", "8,64K,16M", "sizes in bytes, comma separated (a barrier has none)")
	f.StringVar(&s.plan, "plan", "", "plan to use (default: the cheapest by the cost model)")
	f.StringVar(&s.plot, "plot", "", "file for a plot of times and bounds, as SVG")
	f.StringVar(&s.format, "format", "table", "table, json (an object on a line of its own for each row)")
}

// simulation reads the flags, and finds what cannot be simulated.
func (s *scaleFlags) simulation() (*simulation, error) {
	kind, err := plan.ParseKind(s.op)
	if err != nil {
		return nil, usageError(fmt.Errorf("--op: %w", err))
	}
	x := &simulation{ScaleOptions: bench.ScaleOptions{Kind: kind, Plan: s.plan}}
	var names []string
	for _, n := range sim.Networks() {
		names = append(names, n.Name)
		if n.Name == s.network {
			x.Network = n
		}
	}
	if x.Network == nil {
		return nil, usageError(fmt.Errorf("--network %q: there are %s", s.network, strings.Join(names, ", ")))
	}
	if s.perNode < 0 || s.perNode > launch.MaxRanks {
		return nil, usageError(fmt.Errorf("--ranks-per-node %d: want 1 to %d, or 0 for the network's own", s.perNode, launch.MaxRanks))
	}
	if s.perNode > 0 {
		x.Network.RanksPerNode = s.perNode
	}
	if x.cyclic, err = s.distribution.cyclic(); err != nil {
		return nil, err
	}
	if s.format != "table" && s.format != "json" {
		return nil, usageError(fmt.Errorf("--format %q: want table or json", s.format))
	}
	counts, err := commaList("--ranks", s.ranks)
	if err != nil {
		return nil, usageError(err)
	}
	for _, r := range counts {
		p, err := strconv.Atoi(r)
		if err != nil || p < 2 || p > launch.MaxRanks {
			return nil, usageError(fmt.Errorf("--ranks %s: %q is not a number of ranks from 2 to %d", s.ranks, r, launch.MaxRanks))
		}
		x.ranks = append(x.ranks, p)
	}
	if x.sizes, err = parseSizes(s.sizes); err != nil {
		return nil, usageError(err)
	}
	x.sizes = bench.SizesOf(kind, x.sizes)
	return x, x.each(func(ranks, nBytes int) error { return benchError(x.Check(ranks, nBytes)) })
}

// each calls f for every point, with the ranks as they lie on the network's nodes.
func (x *simulation) each(f func(ranks, nBytes int) error) error {
	for _, p := range x.ranks {
		if x.cyclic {
			x.Network.Cyclic = (p + x.Network.RanksPerNode - 1) / x.Network.RanksPerNode
		}
		for _, n := range x.sizes {
			if err := f(p, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// simulate prints the points and returns them.
func (s *scaleFlags) simulate(ctx context.Context, env environment, x *simulation) ([]bench.ScalePoint, error) {
	var points []bench.ScalePoint
	t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	if s.format == "table" {
		fmt.Fprintf(env.stdout, "# %s on %s, %d ranks a node (%s), simulated\n", s.op, s.network, x.Network.RanksPerNode, s.distribution)
		fmt.Fprintln(t, "ranks\tbytes\tplan\tsimulated\tbound\tratio\tnode bound\tmessages\ttook\t")
	}
	err := x.each(func(ranks, nBytes int) error {
		p, err := bench.Scale(ctx, x.ScaleOptions, ranks, nBytes)
		if err != nil {
			return benchError(err)
		}
		points = append(points, p)
		if s.format == "json" {
			b, _ := json.Marshal(p) // numbers and a word
			fmt.Fprintf(env.stdout, "%s\n", b)
			return nil
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%v\t%v\t%.2f\t%v\t%d\t%v\t\n", p.Ranks, p.Bytes, p.Plan, p.Simulated, p.Bound, p.Ratio(), nodeBound(p), p.Messages, p.Wall.Round(time.Millisecond))
		if len(points)%len(x.sizes) == 0 { // all sizes of this number of ranks
			t.Flush()
		}
		return nil
	})
	t.Flush() // what there is before an error
	if err != nil || s.format != "table" {
		return points, err
	}
	return points, bench.ScaleChart(env.stdout, points)
}
