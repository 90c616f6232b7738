package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/spf13/cobra"
)

func infoCommand(env environment) *cobra.Command {
	var (
		connect connectFlags
		roles   roleFlags
	)
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Print launcher, ranks, roles, hosts, transports and why",
		Long: `info says who started it and how ranks reach each other. Alone it describes this machine: InfiniBand
devices, the system's MPI library, processors. Under srun, mpirun or fisterra run the ranks meet, and rank 0
prints which transport was chosen and why, which MPI library there is for them, where each one is, its role, and
the transport to it with the reason for that choice.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := mpi.Detect(env.lookup)
			if err != nil {
				return usageError(err)
			}
			if l.Kind == mpi.BySingleton {
				if err := connect.check(env); err != nil {
					return err
				}
				if _, err := roles.ranks(); err != nil {
					return usageError(err)
				}
				describeMachine(env, l, connect.mpiLibrary)
				return nil
			}
			if err := roles.check(); err != nil {
				return usageError(err)
			}
			j := &job{env: env, connect: connect, layout: []mpi.LayoutField{{Name: "roles", Value: roles.text()}},
				main: func(ctx context.Context, w *mpi.World) error {
					return describeWorld(env, w, l, connect.mpiLibrary, &roles)
				}}
			return j.join(cmd.Context())
		},
	}
	connect.add(cmd.Flags())
	roles.add(cmd.Flags())
	return cmd
}

func describeMachine(env environment, l mpi.LaunchInfo, library string) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown: " + err.Error()
	}
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "version\t%s\n", versionText())
	fmt.Fprintf(w, "host\t%s, %d processors\n", host, runtime.NumCPU())
	fmt.Fprintf(w, "launcher\t%s (%s)\n", l.Kind, l.Reason)
	survey := (&ib.Host{}).Survey()
	if usable := survey.Usable(); len(usable) > 0 {
		fmt.Fprintf(w, "InfiniBand\t%s\n", strings.Join(usable, ", "))
	} else {
		fmt.Fprintf(w, "InfiniBand\tnone usable\n")
	}
	for _, line := range strings.Split(strings.TrimSpace(survey.String()), "\n") {
		fmt.Fprintf(w, "\t%s\n", strings.TrimSpace(line))
	}
	fmt.Fprintf(w, "MPI library\t%s\n", libraryLine(l, library))
}

// libraryLine says which MPI library is there for these ranks, and why that one.
func libraryLine(l mpi.LaunchInfo, path string) string {
	lib, err := native.Open(native.Config{Path: path, Launcher: l.Native})
	if err != nil {
		first, tried, _ := strings.Cut(err.Error(), "\n\t")
		return strings.TrimSpace("none: " + first + " " + strings.ReplaceAll(tried, "\n\t", "; "))
	}
	return fmt.Sprintf("%v, %s (%s)", lib, lib.Path, lib.Why)
}

// limits are what this transport cannot do and others can.
func limits(c mpi.DeviceCaps) []string {
	var all []string
	for _, l := range []struct {
		can  bool
		what string
	}{
		{c.NamesLost, "a lost rank is not named: the library ends the job, or hangs, as it is configured; Shrink fails, and Revoke is heard by its caller alone"},
		{c.CancelsSends, "a send cannot be taken back: its buffer is in use until it is received"},
		{c.Windows, "there is no one-sided communication"},
		{c.SleepsInKernel, "a waiting rank wakes up now and then to look"},
	} {
		if !l.can {
			all = append(all, l.what)
		}
	}
	return all
}

func describeWorld(env environment, w *mpi.World, l mpi.LaunchInfo, library string, roles *roleFlags) error {
	layout, err := w.Layout()
	if err != nil {
		return err
	}
	list, err := roles.assign(layout)
	if err != nil {
		return usageError(err)
	}
	if w.Rank() != 0 {
		return nil
	}
	fmt.Fprintf(env.stdout, "launcher %s (%s), %d ranks on %d hosts\n", l.Kind, l.Reason, w.Size(), hostCount(w))
	fmt.Fprintln(env.stdout, choiceLine(w))
	fmt.Fprintln(env.stdout, "MPI library", libraryLine(l, library))
	for _, what := range limits(w.Comm().Caps()) {
		fmt.Fprintln(env.stdout, "limit:", what)
	}
	t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "rank\tposition\trole\thost\ttransport from rank 0\twhy")
	for r, info := range w.Transports() {
		p := w.Position(r)
		fmt.Fprintf(t, "%d\t%d\t%s %d\t%s\t%s\t%s\n", r, p, list[p], list.Index(p), w.Host(r), info.Name, info.Reason)
	}
	return t.Flush()
}
