package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/spf13/pflag"
)

// connectFlags say how ranks meet and how their messages travel.
type connectFlags struct {
	transport   string
	infiniband  string
	addressRule string
	mpiLibrary  string
	secretDir   string
	congestion  string
	peerTimeout time.Duration
	stallAfter  time.Duration
	start       time.Duration
	site        string
	collectives string
	verbose     bool
}

func (c *connectFlags) add(f *pflag.FlagSet) {
	c.addPlanning(f)
	addInfiniBand(f, "InfiniBand by the system's MPI library, written with =: auto (where it can be), on (an error where it cannot be), off (TCP over the host's ordinary address, whatever --address-rule says)",
		&c.infiniband, &c.addressRule)
	f.StringVar(&c.mpiLibrary, "mpi-library", "", "path of the system's MPI library, for --transport mpi and --infiniband (default: what the launcher's ranks can join, else what the loader finds)")
	f.StringVar(&c.secretDir, "secret-dir", "", "directory on a shared file system for the job's key, where munge does not answer")
	f.StringVar(&c.congestion, "congestion-control", "", "TCP congestion control of data connections (default: cubic where the system's is bbr)")
	f.DurationVar(&c.peerTimeout, "peer-timeout", 5*time.Second, "how long a silent rank is waited for before it counts as lost (0: no heartbeats); without effect with the system's MPI library, which has none")
	f.DurationVar(&c.stallAfter, "stall-after", 10*time.Second, "how long a collective waits before it logs for whom, and what that rank does instead (0: it does not)")
	f.DurationVar(&c.start, "start-timeout", time.Minute, "how long to wait until all ranks have met")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "log how ranks meet and what is chosen")
}

// addPlanning adds the flags that decide how a collective is done. They make sense without ranks that meet, too.
func (c *connectFlags) addPlanning(f *pflag.FlagSet) {
	f.StringVar(&c.transport, "transport", "auto", "auto (mpi where --infiniband finds a usable device, else shared memory within a host and TCP between hosts), shm, tcp, mpi (the system's library)")
	f.StringVar(&c.site, "site", "", "site file of fisterra bench tune, which says which plan is best for a collective")
	f.StringVar(&c.collectives, "collectives", "auto", "who does them with --transport mpi: auto (whom --site names; else Fisterra within a host, the system's library across hosts), native (the library), fisterra")
}

var infiniBandValues = []string{"auto", "on", "off"}

func addInfiniBand(f *pflag.FlagSet, usage string, infiniband, rule *string) {
	f.StringVar(infiniband, "infiniband", "auto", usage)
	f.Lookup("infiniband").NoOptDefVal = "on"
	f.StringVar(rule, "address-rule", "", "address published for TCP: cesga-ft2[:PREFIX], an interface or glob (ib0, ib*), hostname")
}

// config is the Config of a world with these flags.
func (c *connectFlags) config(env environment, layout []mpi.LayoutField) (*mpi.Config, error) {
	if err := c.checkPlanning(); err != nil {
		return nil, usageError(err)
	}
	if !slices.Contains(infiniBandValues, c.infiniband) {
		return nil, usageError(fmt.Errorf("--infiniband=%s: want auto, on or off", c.infiniband))
	}
	if c.addressRule != "" {
		if _, err := ib.ParseRule(c.addressRule, &ib.Host{}); err != nil {
			return nil, usageError(fmt.Errorf("--address-rule: %w", err))
		}
	}
	if err := checkStartTimeout(c.start); err != nil {
		return nil, usageError(err)
	}
	if c.peerTimeout != 0 && c.peerTimeout < mpi.MinPeerTimeout {
		return nil, usageError(fmt.Errorf("--peer-timeout %v: want a time such as 5s, at least %v, or 0 for no heartbeats", c.peerTimeout, mpi.MinPeerTimeout))
	}
	if c.stallAfter < 0 {
		return nil, usageError(fmt.Errorf("--stall-after %v: want a time such as 10s, or 0 for no reports", c.stallAfter))
	}
	level := slog.LevelWarn
	if c.verbose {
		level = slog.LevelDebug
	}
	return &mpi.Config{
		Lookup:            env.lookup,
		Transport:         c.transport,
		InfiniBand:        c.infiniband,
		AddressRule:       c.addressRule,
		MPILibrary:        c.mpiLibrary,
		SecretDir:         c.secretDir,
		CongestionControl: c.congestion,
		PeerTimeout:       orNever(c.peerTimeout),
		StartTimeout:      c.start,
		Layout:            append(slices.Clone(layout), mpi.LayoutField{Name: "--collectives", Value: c.collectives}),
		Log:               slog.New(slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: level})),
	}, nil
}

// orNever turns the time of a flag, for which 0 is never, into that of a Config, for which 0 is the default and a
// negative time is never.
func orNever(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func (c *connectFlags) checkPlanning() error {
	if !slices.Contains([]string{"auto", "shm", "tcp", "mpi"}, c.transport) {
		return fmt.Errorf("--transport %q: want auto, shm, tcp or mpi", c.transport)
	}
	if _, ok := collectiveLibraries[c.collectives]; !ok {
		return fmt.Errorf("--collectives=%s: want auto, native or fisterra", c.collectives)
	}
	return nil
}

// checkHere finds what all ranks that this command starts itself would refuse, each in the same words.
func (c *connectFlags) checkHere(ctx context.Context, env environment) error {
	if err := c.check(env); err != nil {
		return err
	}
	if c.infiniband == "on" || c.transport == "mpi" {
		return usageError(errors.New("ranks that fisterra starts itself are strangers to the system's MPI library, which --transport mpi and --infiniband use: start them by mpirun, mpiexec or srun"))
	}
	if c.collectives == "native" {
		return &exitError{exitAbsent, errNoLibrary}
	}
	cfg, err := c.config(env, nil)
	if err != nil {
		return err
	}
	if err := cfg.CheckHere(ctx); err != nil {
		return initError(err)
	}
	return nil
}

// check refuses what is wrong, or absent here, whoever starts the ranks.
func (c *connectFlags) check(env environment) error {
	if _, err := c.config(env, nil); err != nil {
		return err
	}
	if err := c.checkRDMA(); err != nil {
		return &exitError{exitAbsent, err}
	}
	if c.infiniband == "on" && c.transport == "auto" {
		if err := (&ib.Host{}).Survey().Err(); err != nil {
			return &exitError{exitAbsent, fmt.Errorf("--infiniband: no device is usable: %w", err)}
		}
	}
	return c.readSite(new(collective.Config))
}

// checkRDMA refuses to look for a device that the transport would not use.
func (c *connectFlags) checkRDMA() error {
	if c.infiniband == "on" && (c.transport == "shm" || c.transport == "tcp") {
		return fmt.Errorf("--transport %s cannot do RDMA, and --infiniband asks for it: use auto or mpi", c.transport)
	}
	return nil
}

// checkStartTimeout refuses a time in which nobody can meet.
func checkStartTimeout(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("--start-timeout %v: want a time above 0, such as 60s", d)
	}
	return nil
}

// collectiveLibraries are the values of --collectives.
var collectiveLibraries = map[string]collective.Library{
	"auto": collective.LibraryAuto, "native": collective.LibraryAlways, "fisterra": collective.LibraryNever,
}

// readSite takes plans and their prices from the file of --site, if there is one.
func (c *connectFlags) readSite(cfg *collective.Config) error {
	if c.site == "" {
		return nil
	}
	f, err := os.Open(c.site)
	if err != nil {
		return usageError(fmt.Errorf("--site: %w", err))
	}
	defer f.Close()
	site, err := collective.ReadSite(f, c.site)
	if err != nil {
		return usageError(fmt.Errorf("--site: %w", err))
	}
	cfg.Site = site
	return nil
}
