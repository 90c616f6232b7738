package mpi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// choice is which transport a world uses, and why.
type choice struct {
	transport string // "auto" (shm and tcp), "shm", "tcp" or "mpi"
	reason    string
	byHost    bool // it was decided by what was found on hosts
	agreed    bool // likewise, on the hosts of all ranks
	warns     bool // the user may not have wanted this, and can mend it
	demanding bool // a rank whose host has no device ends
}

// report writes the choice and its reason to the start-up lines; rank 0 writes a choice that warns as a warning.
func (c choice) report(ctx context.Context, log *slog.Logger, l *origin) {
	level := slog.LevelInfo
	if c.warns && l.rank == 0 {
		level = slog.LevelWarn
	}
	log.Log(ctx, level, "transport", "choice", c.transport, "because", c.reason)
}

// without is the choice that is left when the library's ranks are not the launcher's: why says so.
func (c choice) without(why error) choice {
	return choice{transport: "auto", reason: own + ": the MPI library that would drive the RDMA device does not find the ranks of this step: " + why.Error(), byHost: true, warns: true}
}

// explain adds to the error of a start what may be behind it. Where the ranks do not agree first, since a process manager's
// data for the MPI library can be read only once, each chooses by what it finds on its own host, and they may choose
// differently. The error of an MPI library under another library's launcher explains itself.
func (c choice) explain(err error) error {
	if c.demanding && errors.Is(err, ErrStartTimeout) {
		return fmt.Errorf("%w; InfiniBand is on, and this rank has a device: one whose host has none has ended, and says so", err)
	}
	if !c.byHost || c.agreed || errors.Is(err, native.ErrLauncher) || !errors.Is(err, ErrStartTimeout) && !errors.Is(err, ErrLauncher) {
		return err
	}
	return fmt.Errorf("%w; this rank chose transport %s (%s): if ranks on other hosts found something else, name one transport for all (Config.Transport, --transport)", err, c.transport, c.reason)
}

// own says what Fisterra's own transports are.
const own = "shared memory on one host, else TCP"

// choose decides between Fisterra's own transports and the system's MPI library. survey returns nil if an RDMA device is
// usable on this host. Where the user leaves the choice open, together makes it, by what was found on this host or on the
// hosts of all ranks.
func choose(cfg *Config, l *origin, survey func() error, together func() (choice, error)) (choice, error) {
	switch cfg.InfiniBand {
	case "", "auto", "on", "off":
	default:
		return choice{}, fmt.Errorf("mpi: %w: InfiniBand %q is none of auto, on, off", ErrTransport, cfg.InfiniBand)
	}
	switch cfg.Transport {
	case "", "auto":
	case "shm", "tcp":
		if cfg.InfiniBand == "on" {
			return choice{}, fmt.Errorf("mpi: %w: transport %s cannot do RDMA, and InfiniBand is asked for; use auto or mpi", ErrTransport, cfg.Transport)
		}
		return choice{transport: cfg.Transport, reason: "asked for"}, nil
	case "mpi":
		return chooseMPI(cfg, l, survey)
	default:
		return choice{}, fmt.Errorf("mpi: %w: %q is none; there are auto, shm, tcp, mpi", ErrTransport, cfg.Transport)
	}
	switch cfg.InfiniBand {
	case "off":
		return choice{transport: "auto", reason: own + " over the host's ordinary address: InfiniBand is off"}, nil
	case "on":
		if err := requireDevice(survey); err != nil {
			return choice{}, err
		}
		return byLibrary(cfg, l, "InfiniBand is on, which the system's MPI library drives").demands(), nil
	}
	without := func(why string) choice {
		if survey() != nil {
			return choice{transport: "auto", reason: own + ": no usable RDMA device"}
		}
		return choice{transport: "auto", warns: true, reason: own + ": an RDMA device is usable, but " + why}
	}
	switch {
	case l.size == 1, !l.canStartMPI() && l.allHere():
		return choice{transport: "auto", reason: own}, nil
	case !l.canStartMPI():
		return without("this launcher starts no ranks of an MPI library, which would drive it; srun --mpi=pmix and --mpi=pmi2, mpirun and mpiexec do"), nil
	case cfg.OutlivesRanks:
		return without("with the MPI library that would drive it one lost rank ends the job, and this run is to go on without those that are lost; InfiniBand on takes the library"), nil
	}
	return together()
}

// chooseMPI is the choice where the system's MPI library is asked for by name. The library chooses its network itself.
// With InfiniBand off that is an error only where the library would use a device that is to be left alone, which takes a
// device on this host and ranks on several hosts.
func chooseMPI(cfg *Config, l *origin, survey func() error) (choice, error) {
	switch {
	case cfg.InfiniBand == "on":
		if err := requireDevice(survey); err != nil {
			return choice{}, err
		}
		return byLibrary(cfg, l, "asked for").demands(), nil
	case cfg.InfiniBand == "off" && (l.size < 0 || !l.allHere()) && survey() == nil:
		return choice{}, fmt.Errorf("mpi: %w: InfiniBand is off, but transport mpi leaves the network to the system's MPI library, which uses the RDMA device of this host; "+
			"use auto or tcp, or leave InfiniBand to auto and tell the library by its own variables (UCX_TLS, OMPI_MCA_btl, FI_PROVIDER)", ErrTransport)
	}
	return byLibrary(cfg, l, "asked for"), nil
}

// byLibrary is the choice of the MPI library by the user.
func byLibrary(cfg *Config, l *origin, why string) choice {
	c := choice{transport: "mpi", reason: why}
	if cfg.OutlivesRanks && l.size != 1 {
		c.warns = true
		c.reason += "; one lost rank ends the job, although this run could go on: the MPI library does not tell which rank is lost"
	}
	return c
}

// demands is the choice under which a rank whose host has no device ends.
func (c choice) demands() choice {
	c.demanding = true
	return c
}

// rdma is what to check once the library has begun: nothing where the library was asked for by its name alone.
func (c choice) rdma(host *ib.Host) rdmaCheck {
	if !c.demanding && !c.byHost {
		return rdmaCheck{}
	}
	return rdmaCheck{opened: host.Opened, required: c.demanding}
}

// requireDevice is the error where InfiniBand is asked for and cannot be had: what was looked for, and found.
func requireDevice(survey func() error) error {
	if err := survey(); err != nil {
		return fmt.Errorf("mpi: %w: InfiniBand is asked for, but no device is usable: %w", ErrTransport, err)
	}
	return nil
}

// canStartMPI reports whether the system's MPI library finds its ranks under
// this launcher.
func (l *origin) canStartMPI() bool {
	switch l.kind {
	case ByOpenMPI, ByMPICH, ByPMI2, ByPMIx:
		return true
	}
	return false
}
