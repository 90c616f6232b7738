package mpi

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/ib"
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
	choice, err := choose(cfg, l, (&ib.Host{}).Survey)
	if err != nil {
		return nil, err
	}
	log := cfg.log()
	log.Info("ranks", "launcher", l.kind, "because", l.reason, "rank", l.rank, "size", l.size)
	log.Info("transport", "choice", choice.transport, "because", choice.reason)
	if choice.transport == "mpi" {
		return openNative(ctx, cfg, l)
	}
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
	p, err := openProviders(&own, l, m, set, choice.transport)
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
		Membership: t, Launcher: l.kind, Log: log,
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
}

// choose decides between Fisterra's own transports and the system's MPI
// library. survey is asked for RDMA devices only where they matter.
func choose(cfg *Config, l *launch, survey func() *ib.Survey) (choice, error) {
	switch cfg.Transport {
	case "", "auto":
	case "shm", "tcp", "mpi":
		if cfg.InfiniBand == "on" && cfg.Transport != "mpi" {
			return choice{}, fmt.Errorf("mpi: %w: transport %s cannot do RDMA, and InfiniBand is asked for; use auto or mpi", ErrTransport, cfg.Transport)
		}
		return choice{cfg.Transport, "asked for"}, nil
	default:
		return choice{}, fmt.Errorf("mpi: %w: %q is none; there are auto, shm, tcp, mpi", ErrTransport, cfg.Transport)
	}
	own := "shared memory on one host, else TCP"
	switch cfg.InfiniBand {
	case "off":
		return choice{"auto", own + " over the host's ordinary address: InfiniBand is off"}, nil
	case "on":
		s := survey()
		if err := s.Err(); err != nil {
			return choice{}, fmt.Errorf("mpi: %w: InfiniBand is asked for, but no device is usable: %w", ErrTransport, err)
		}
		return choice{"mpi", "InfiniBand is on, which the system's MPI library drives"}, nil
	case "", "auto":
		if l.size == 1 || !l.canStartMPI() {
			return choice{"auto", own}, nil
		}
		if s := survey(); s.Err() == nil {
			return choice{"mpi", "an RDMA device is usable, and the system's MPI library drives it"}, nil
		}
		return choice{"auto", own + ": no usable RDMA device"}, nil
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
