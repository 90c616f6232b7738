package mpi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
	"github.com/fisterra-hpc/fisterra/mpi/transport/tcp"
	"golang.org/x/sys/unix"
)

// Init makes this process a rank of the world that its launcher started:
// Fisterra's own, a Slurm step, a process manager (PMI, PMIx), or none, which is a world of
// one. It blocks until all ranks have met and agree on cfg.Layout. A nil cfg is the zero Config.
//
// The errors wrap ErrLauncher, ErrLayout, ErrTransport or ErrStartTimeout, or ctx's cause. A process
// calls Init once under a launcher: what it inherits can be read only once.
func Init(ctx context.Context, cfg *Config) (*World, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	l, err := detect(cfg.lookup())
	if err != nil {
		return nil, err
	}
	watchLauncher(l.aliveFD)
	library := sync.OnceValues(func() (*native.Library, error) {
		return native.Open(native.Config{Path: cfg.MPILibrary, Lookup: cfg.lookup(), Log: cfg.log()})
	})
	choice, err := choose(cfg, l, func() error { return (&ib.Host{}).Survey().Err() }, library)
	if err != nil {
		return nil, err
	}
	log := cfg.log()
	log.Info("ranks", "launcher", l.kind, "because", l.reason, "rank", l.rank, "size", l.size)
	level := slog.LevelInfo
	if choice.lacks && l.rank == 0 {
		level = slog.LevelWarn
	}
	log.Log(ctx, level, "transport", "choice", choice.transport, "because", choice.reason)
	var w *World
	if choice.transport == "mpi" {
		w, err = openNative(ctx, cfg, l, library)
	} else {
		w, err = openOwn(ctx, cfg, l, choice.transport)
	}
	return w, choice.explain(err)
}

// openOwn makes this process a rank of a world over Fisterra's own transports.
func openOwn(ctx context.Context, cfg *Config, l *launch, transport string) (*World, error) {
	own := *cfg
	if cfg.InfiniBand == "off" {
		own.AddressRule = ""
	}
	m, err := meet(ctx, &own, l)
	if err != nil {
		return nil, err
	}
	set, err := newSleepSet()
	if err != nil {
		m.close()
		return nil, fmt.Errorf("mpi: %w", err)
	}
	p, err := openProviders(&own, l, m, set, transport)
	if err != nil {
		m.close()
		set.close()
		return nil, fmt.Errorf("mpi: %w: %w", ErrTransport, err)
	}
	t, r, err := m.agree(ctx, p.addresses)
	if err != nil {
		p.close()
		set.close()
		return nil, err
	}
	if p.tcp != nil {
		p.tcp.SetLayout(r.Hash)
	}
	w, err := Assemble(Assembly{
		Rank: l.rank, Members: r.members(), Providers: p.all, Set: set,
		Membership: t, Launcher: l.kind, Log: cfg.log(),
	})
	if err != nil {
		t.Close()
		p.close()
		set.close()
		return nil, err
	}
	return w, nil
}

// opened are the providers of a world that is being made.
type opened struct {
	all       []transport.Provider
	addresses map[string][]byte
	tcp       *tcp.Provider
}

func (o *opened) close() {
	for _, p := range o.all {
		p.Close()
	}
}

// openProviders opens what the choice names, in order of preference.
func openProviders(cfg *Config, l *launch, m *meeting, set *sleepSet, choice string) (o *opened, err error) {
	o = &opened{addresses: map[string][]byte{}}
	if l.size == 1 {
		return o, nil
	}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if choice == "auto" || choice == "shm" {
		p, err := shm.Open(shm.Config{Rank: l.rank, Size: l.size, Job: l.job, Restart: l.restart, Secret: m.secret, Set: set, Log: cfg.log()})
		if err != nil {
			return o, fmt.Errorf("shm: %w", err)
		}
		o.all = append(o.all, p)
	}
	if choice == "auto" || choice == "tcp" {
		p, err := tcp.Open(tcp.Config{
			Rank: l.rank, Size: l.size, Job: l.job, Restart: l.restart, Secret: m.secret,
			Host: m.address.String(), Set: set, Log: cfg.log(), CongestionControl: cfg.CongestionControl,
		})
		if err != nil {
			return o, fmt.Errorf("tcp on %s (%s): %w", m.address, m.why, err)
		}
		o.tcp = p
		o.all = append(o.all, p)
	}
	for _, p := range o.all {
		o.addresses[p.Name()] = p.Address()
	}
	return o, nil
}

// choice is which transport a world uses, and why.
type choice struct {
	transport string // "auto" (shm and tcp), "shm", "tcp" or "mpi"
	reason    string
	byHost    bool // what was found on this host has decided
	lacks     bool // a device is not used for want of a library
}

// explain adds to the error of a start what may be behind it: every rank chooses by what it
// finds on its own host, before it can ask the others, since what a process manager has for the MPI
// library can be read only once.
func (c choice) explain(err error) error {
	if !c.byHost || !errors.Is(err, ErrStartTimeout) && !errors.Is(err, ErrLauncher) {
		return err
	}
	return fmt.Errorf("%w; this rank chose transport %s (%s): if ranks on other hosts found something else, name one transport for all (Config.Transport, --transport)", err, c.transport, c.reason)
}

// choose decides between Fisterra's own transports and the system's MPI
// library. What is found on this host matters only where the choice is left open: survey
// is nil if an RDMA device is usable, library opens the MPI library.
func choose(cfg *Config, l *launch, survey func() error, library func() (*native.Library, error)) (choice, error) {
	switch cfg.Transport {
	case "", "auto":
	case "shm", "tcp", "mpi":
		if cfg.InfiniBand == "on" && cfg.Transport != "mpi" {
			return choice{}, fmt.Errorf("mpi: %w: transport %s cannot do RDMA, and InfiniBand is asked for; use auto or mpi", ErrTransport, cfg.Transport)
		}
		return choice{transport: cfg.Transport, reason: "asked for"}, nil
	default:
		return choice{}, fmt.Errorf("mpi: %w: %q is none; there are auto, shm, tcp, mpi", ErrTransport, cfg.Transport)
	}
	own := "shared memory on one host, else TCP"
	switch cfg.InfiniBand {
	case "off":
		return choice{transport: "auto", reason: own + " over the host's ordinary address: InfiniBand is off"}, nil
	case "on":
		if err := survey(); err != nil {
			return choice{}, fmt.Errorf("mpi: %w: InfiniBand is asked for, but no device is usable: %w", ErrTransport, err)
		}
		return choice{transport: "mpi", reason: "InfiniBand is on, which the system's MPI library drives"}, nil
	case "", "auto":
		if l.size == 1 || !l.canStartMPI() {
			return choice{transport: "auto", reason: own}, nil
		}
		if survey() != nil {
			return choice{transport: "auto", reason: own + ": no usable RDMA device", byHost: true}, nil
		}
		if cfg.MPILibrary == "" { // one that is named must open
			if _, err := library(); err != nil {
				why, _, _ := strings.Cut(err.Error(), "; tried:\n")
				return choice{transport: "auto", reason: own + ": an RDMA device is usable, but not the MPI library that would drive it: " + why, byHost: true, lacks: true}, nil
			}
		}
		return choice{transport: "mpi", reason: "an RDMA device is usable, and the system's MPI library drives it", byHost: true}, nil
	}
	return choice{}, fmt.Errorf("mpi: %w: InfiniBand %q is none of auto, on, off", ErrTransport, cfg.InfiniBand)
}

// canStartMPI reports whether the system's MPI library finds its ranks under
// this launcher.
func (l *launch) canStartMPI() bool {
	switch l.kind {
	case byOpenMPI, byMPICH, byPMI2, byPMIx:
		return true
	}
	return false
}

// orphanTime is how long a rank whose launcher is gone has for its own end.
const orphanTime = 5 * time.Second

// watchLauncher ends this process when its launcher is gone, like a hang-up
// of the terminal: SIGTERM, then SIGKILL.
func watchLauncher(fd int) {
	if fd < 0 {
		return
	}
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "launcher")
	if f == nil {
		return
	}
	go func() {
		var b [1]byte
		f.Read(b[:]) // nobody writes: it returns when the launcher's end is closed
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		time.Sleep(orphanTime)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
}

// Kinds of launchers, as LaunchInfo and World.Launcher name them.
const (
	ByFisterra  = byFisterra
	ByOpenMPI   = byOpenMPI
	ByMPICH     = byMPICH
	ByPMI2      = byPMI2
	ByPMIx      = byPMIx
	BySlurm     = bySlurm
	BySingleton = bySingleton
)

// LaunchInfo is what the environment says of who started this process.
type LaunchInfo struct {
	Kind       string // one of the By constants
	Reason     string // the variables that decided it
	Rank, Size int    // Size is -1 where only the launcher's library knows it
}

// Detect finds out who started this process, without connecting to anything.
func Detect(lookup func(string) (string, bool)) (LaunchInfo, error) {
	l, err := detect(lookup)
	if err != nil {
		return LaunchInfo{}, err
	}
	return LaunchInfo{Kind: l.kind, Reason: l.reason, Rank: l.rank, Size: l.size}, nil
}
