package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
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

func benchScaleCommand(env environment) *cobra.Command {
	var ranks, op, network, sizes, name, file, format string
	var distribution distributionFlag
	var perNode int
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Simulate a collective on many ranks of a cluster network",
		Long: `scale runs the program's own engine, plans and executor over a simulated network in virtual time, on one
core of this machine. Messages carry sizes, not bytes. It prints the simulated time against the lower
bound of the model, ⌈log₂P⌉α + 2(P−1)/P·nβ + (P−1)/P·nγ for allreduce. That bound gives each rank a link of its
own and lets nothing overlap or stay within a node, so times below it are possible; the column "node bound" is what the ranks of a node need at least, who share their node's link and copy for themselves.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kind, err := plan.ParseKind(op)
			if err != nil {
				return usageError(err)
			}
			o := bench.ScaleOptions{Kind: kind, Plan: name}
			var names []string
			for _, n := range sim.Networks() {
				names = append(names, n.Name)
				if n.Name == network {
					o.Network = n
				}
			}
			if o.Network == nil {
				return usageError(fmt.Errorf("--network %q: there are %s", network, strings.Join(names, ", ")))
			}
			if perNode < 0 || perNode > launch.MaxRanks {
				return usageError(fmt.Errorf("--ranks-per-node %d: want 1 to %d, or 0 for the network's own", perNode, launch.MaxRanks))
			}
			if perNode > 0 {
				o.Network.RanksPerNode = perNode
			}
			cyclic, err := distribution.cyclic()
			if err != nil {
				return err
			}
			if format != "table" && format != "json" {
				return usageError(fmt.Errorf("--format %q: want table or json", format))
			}
			counts, err := commaList("--ranks", ranks)
			if err != nil {
				return usageError(err)
			}
			lengths, err := commaList("--sizes", sizes)
			if err != nil {
				return usageError(err)
			}
			var points []bench.ScalePoint
			t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
			if format == "table" {
				fmt.Fprintf(env.stdout, "# %s on %s, %d ranks a node (%s), simulated\n", op, o.Network.Name, o.Network.RanksPerNode, distribution)
				fmt.Fprintln(t, "ranks\tbytes\tplan\tsimulated\tbound\tratio\tnode bound\tmessages\ttook\t")
			}
			for _, r := range counts {
				p, err := strconv.Atoi(r)
				if err != nil || p < 2 || p > launch.MaxRanks {
					return usageError(fmt.Errorf("--ranks %s: %q is not a number of ranks from 2 to %d", ranks, r, launch.MaxRanks))
				}
				if cyclic {
					o.Network.Cyclic = (p + o.Network.RanksPerNode - 1) / o.Network.RanksPerNode
				}
				for _, s := range lengths {
					n, err := parseBytes(s)
					if err != nil {
						return usageError(fmt.Errorf("--sizes %s: %w", sizes, err))
					}
					x, err := bench.Scale(cmd.Context(), o, p, n)
					if err != nil {
						return err
					}
					points = append(points, x)
					if format == "json" {
						b, _ := json.Marshal(x) // numbers and a word
						fmt.Fprintf(env.stdout, "%s\n", b)
						continue
					}
					fmt.Fprintf(t, "%d\t%d\t%s\t%v\t%v\t%.2f\t%v\t%d\t%v\t\n", x.Ranks, x.Bytes, x.Plan, x.Simulated, x.Bound, x.Ratio(), nodeBound(x), x.Messages, x.Wall.Round(time.Millisecond))
				}
				t.Flush()
			}
			if file == "" {
				return nil
			}
			f, err := os.Create(file)
			if err != nil {
				return fmt.Errorf("--plot: %w", err)
			}
			return errors.Join(bench.PlotScale(f, fmt.Sprintf("%s on %s, simulated; dashed: lower bound", op, o.Network.Name), points), f.Close())
		},
	}
	f := cmd.Flags()
	f.StringVar(&ranks, "ranks", "16,256,4096", "numbers of ranks, comma separated")
	f.StringVar(&op, "op", "allreduce", "allreduce, bcast, reduce, barrier, scan, exscan; gather, scatter, allgather, reduce_scatter, alltoall (sizes of all blocks together)")
	f.StringVar(&network, "network", "fdr", "fdr (InfiniBand FDR, 24 ranks a node), hdr100 (64 ranks a node)")
	f.IntVar(&perNode, "ranks-per-node", 0, "ranks that share a node and its link (0: as the network has)")
	distribution.add(f)
	f.StringVar(&sizes, "sizes", "8,64K,16M", "sizes in bytes, comma separated")
	f.StringVar(&name, "plan", "", "plan to use (default: the cheapest by the cost model)")
	f.StringVar(&file, "plot", "", "file for a plot of times and bounds, as SVG")
	f.StringVar(&format, "format", "table", "table, json")
	return cmd
}
