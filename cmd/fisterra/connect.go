package main

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
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
	start       time.Duration
	site        string
	collectives string
	verbose     bool
}

func (c *connectFlags) add(f *pflag.FlagSet) {
	f.StringVar(&c.transport, "transport", "auto", "auto (shared memory on one host, else TCP), shm, tcp, mpi (the system's library)")
	addInfiniBand(f, &c.infiniband, &c.addressRule)
	f.StringVar(&c.mpiLibrary, "mpi-library", "", "path of the system's MPI library, for --transport mpi")
	f.StringVar(&c.secretDir, "secret-dir", "", "directory on a shared file system for the job's key, where munge does not answer")
	f.StringVar(&c.congestion, "congestion-control", "", "TCP congestion control of data connections (default: cubic where the system's is bbr)")
	f.DurationVar(&c.peerTimeout, "peer-timeout", 5*time.Second, "how long a silent rank is waited for before it counts as lost (0: no heartbeats)")
	f.DurationVar(&c.start, "start-timeout", time.Minute, "how long to wait until all ranks have met")
	f.StringVar(&c.site, "site", "", "site file of fisterra bench tune, which says which plan is best for a collective")
	f.StringVar(&c.collectives, "collectives", "auto", "who does them with --transport mpi: auto (whom --site names; else Fisterra within a host, the system's library across hosts), native (the library), fisterra")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "log how ranks meet and what is chosen")
}

func addInfiniBand(f *pflag.FlagSet, infiniband, rule *string) {
	f.StringVar(infiniband, "infiniband", "auto", "auto, on, off")
	f.Lookup("infiniband").NoOptDefVal = "on"
	f.StringVar(rule, "address-rule", "", "address published for TCP: cesga-ft2[:PREFIX], an interface or glob (ib0, ib*), hostname")
}

// config is the Config of a world with these flags.
func (c *connectFlags) config(env environment, layout []mpi.LayoutField) (*mpi.Config, error) {
	switch c.transport {
	case "auto", "shm", "tcp", "mpi":
	default:
		return nil, usageError(fmt.Errorf("--transport %q: want auto, shm, tcp or mpi", c.transport))
	}
	switch c.infiniband {
	case "auto", "on", "off":
	default:
		return nil, usageError(fmt.Errorf("--infiniband=%s: want auto, on or off", c.infiniband))
	}
	if err := checkStartTimeout(c.start); err != nil {
		return nil, usageError(err)
	}
	if _, ok := collectiveLibraries[c.collectives]; !ok {
		return nil, usageError(fmt.Errorf("--collectives=%s: want auto, native or fisterra", c.collectives))
	}
	timeout := c.peerTimeout
	if timeout == 0 {
		timeout = -1
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
		PeerTimeout:       timeout,
		StartTimeout:      c.start,
		Layout:            append(slices.Clone(layout), mpi.LayoutField{Name: "--collectives", Value: c.collectives}),
		Log:               slog.New(slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: level})),
	}, nil
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
