package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// initReport is what bench init prints. Times are in seconds.
type initReport struct {
	Ranks    int    `json:"ranks"`
	Hosts    int    `json:"hosts"`
	Launcher string `json:"launcher"`
	// Joined is from the start of a rank's process until it was in the world,
	// Ready until it knew that every other rank was, too.
	Joined spread `json:"joined"`
	Ready  spread `json:"ready"`
	// Since is from --since until the last rank was ready; nil without.
	Since *float64 `json:"since_to_ready,omitempty"`
}

type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func spreadOf(x []float64) spread {
	slices.Sort(x)
	n := len(x)
	return spread{x[0], (x[(n-1)/2] + x[n/2]) / 2, x[n-1]}
}

func benchInitCommand(env environment) *cobra.Command {
	var (
		connect connectFlags
		ranks   int
		since   string
		format  string
	)
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Time from the start of the processes until all ranks are ready",
		Long: `init measures the start of a world: for each rank from the start of its process until it has joined, and
until all are known to have joined, by a barrier. With --since "$(date +%s.%N)" in front of srun it also
prints the time from then to the last rank ready, which holds the launcher's own; hosts' clocks must agree.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkRanks(ranks); err != nil {
				return err
			}
			if format != "text" && format != "json" {
				return usageError(fmt.Errorf("--format %q: want text or json", format))
			}
			begin := 0.0
			if since != "" {
				var err error
				// A time far ahead is in another unit. Clocks that differ by less than an hour are not for this
				// command to refuse.
				ahead := float64(time.Now().Add(time.Hour).Unix())
				if begin, err = strconv.ParseFloat(since, 64); err != nil || !(begin > 0 && begin < ahead) {
					return usageError(fmt.Errorf("--since %q: want seconds since 1970, as date +%%s.%%N prints them", since))
				}
			}
			j := &job{env: env, connect: connect, ranks: ranks, layout: []mpi.LayoutField{{Name: "operation", Value: "init"}},
				main: func(ctx context.Context, w *mpi.World) error { return measureInit(ctx, env, w, begin, format) }}
			return j.run(cmd.Context(), os.Args[1:])
		},
	}
	f := cmd.Flags()
	f.IntVarP(&ranks, "ranks", "n", 2, "number of ranks to start when alone")
	f.StringVar(&since, "since", "", "also measure from this time on, in seconds since 1970")
	f.StringVar(&format, "format", "text", "text, json")
	connect.add(f)
	return cmd
}

func measureInit(ctx context.Context, env environment, w *mpi.World, since float64, format string) error {
	age, err := processAge()
	if err != nil {
		return err
	}
	entered := time.Now()
	if err := collective.Barrier(ctx, w.Comm()); err != nil {
		return err
	}
	now := time.Now()
	const values = 3
	own := []float64{age.Seconds(), (age + now.Sub(entered)).Seconds(), float64(now.UnixMicro())/1e6 - since}
	all := make([]float64, values*w.Size())
	if err := collective.Gather(ctx, w.Comm(), own, all, 0); err != nil {
		return err
	}
	if w.Rank() != 0 {
		return nil
	}
	var joined, ready []float64
	last := math.Inf(-1)
	for r := range w.Size() {
		joined, ready = append(joined, all[values*r]), append(ready, all[values*r+1])
		last = max(last, all[values*r+2])
	}
	report := initReport{Ranks: w.Size(), Hosts: hostCount(w), Launcher: w.Launcher(), Joined: spreadOf(joined), Ready: spreadOf(ready)}
	if since > 0 {
		report.Since = &last
	}
	return report.print(env, format)
}

func (r *initReport) print(env environment, format string) error {
	if format == "json" {
		return json.NewEncoder(env.stdout).Encode(r)
	}
	fmt.Fprintf(env.stdout, "# Fisterra init, %s\n# %d ranks on %d hosts (%s); seconds from the start of a rank's process\n", versionText(), r.Ranks, r.Hosts, r.Launcher)
	t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "# Until\tmin\tmedian\tmax")
	for _, row := range []struct {
		name string
		s    spread
	}{{"joined", r.Joined}, {"all ready", r.Ready}} {
		fmt.Fprintf(t, "%s\t%.3f\t%.3f\t%.3f\n", row.name, row.s.Min, row.s.Median, row.s.Max)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Since != nil {
		fmt.Fprintf(env.stdout, "# %.3f s from --since to the last rank ready\n", *r.Since)
	}
	return nil
}

// processAge is how long this process has existed, to the kernel's 10 ms. It counts from the fork, and so the
// loading of the program.
func processAge() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, fmt.Errorf("start of this process: %w", err)
	}
	// The command's name, in parentheses, may hold blanks.
	const startTime = 22 - 3 // field 22 of proc_pid_stat(5); the state, field 3, comes after the name
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= startTime {
		return 0, fmt.Errorf("start of this process: /proc/self/stat has %d fields", len(fields))
	}
	ticks, err := strconv.ParseInt(fields[startTime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start of this process: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("start of this process: %w", err)
	}
	const tick = time.Second / 100 // USER_HZ is 100 on every architecture that Go runs on
	return time.Duration(now.Nano()) - time.Duration(ticks)*tick, nil
}
