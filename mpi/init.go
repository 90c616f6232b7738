package mpi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
	"github.com/fisterra-hpc/fisterra/mpi/transport/tcp"
)

// Init makes this process a rank of the world that its launcher started:
// Fisterra's own, a Slurm step, a process manager (PMI, PMIx), or none, which is a world of
// one. It blocks until all ranks have met and agree on cfg.Layout. A nil cfg is the zero Config.
//
// The errors wrap ErrLauncher, ErrLayout, ErrTransport or ErrStartTimeout, or ctx's cause. A process
// calls Init once under a launcher: what it inherits can be read only once.
func Init(ctx context.Context, cfg *Config) (*World, error) {
	return initOn(ctx, cfg, &ib.Host{})
}

// initOn is Init on a host.
func initOn(ctx context.Context, cfg *Config, host *ib.Host) (*World, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l, err := detect(cfg.lookup())
	if err != nil {
		return nil, err
	}
	if err := watchLauncher(l.aliveFD, cfg.log()); err != nil {
		return nil, fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
	}
	library := sync.OnceValues(func() (*native.Library, error) {
		return native.Open(native.Config{Path: cfg.MPILibrary, Launcher: l.native, Log: cfg.log()})
	})
	log := cfg.log()
	log.Info("ranks", "launcher", l.kind, "because", l.reason, "rank", l.rank, "size", l.size)
	survey := func() error { return host.Survey().Err() }
	var met *meeting // of ranks that have agreed on the choice
	choice, err := choose(cfg, l, survey, func() (c choice, err error) {
		c, met, err = chooseTogether(ctx, cfg, l, surveyHost(l, survey, library))
		return c, err
	})
	if err != nil {
		return nil, err
	}
	choice.report(ctx, log, l)
	var w *World
	if choice.transport == "mpi" {
		w, err = openChosen(ctx, met, cfg, l, library, choice.rdma(host))
		if choice.byHost && l.step != nil && errors.Is(err, native.ErrLauncher) {
			// On every rank the library is in a world other than the step's, so that no rank waits for another there.
			choice = choice.without(err)
			choice.report(ctx, log, l)
		}
	}
	switch {
	case choice.transport == "mpi":
		if met != nil {
			met.close()
		}
	case met != nil:
		w, err = openMet(ctx, cfg, l, met, choice.transport)
	default:
		w, err = meetAndOpen(ctx, cfg, l, choice.transport)
	}
	if err != nil {
		return nil, choice.explain(err)
	}
	w.choice = choice
	return w, nil
}

// openChosen is openNative, bounded by the deadline of the meeting that chose it, if there was one. Ranks that go on with
// the meeting itself (openMet) need no such bound: they wait a moment longer, to hear which ranks are missing.
func openChosen(ctx context.Context, met *meeting, cfg *Config, l *origin, library func() (*native.Library, error), rdma rdmaCheck) (*World, error) {
	if met != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, met.deadline, startTimeout(cfg.startTimeout()))
		defer cancel()
	}
	return openNative(ctx, cfg, l, library, rdma)
}

// meetAndOpen makes this process a rank of a world over Fisterra's own transports.
func meetAndOpen(ctx context.Context, cfg *Config, l *origin, transport string) (*World, error) {
	own := cfg.own()
	m, err := meet(ctx, own, l)
	if err != nil {
		return nil, err
	}
	return openMet(ctx, own, l, m, transport)
}

// CheckHere finds errors with which Init would end, given c, on each of several ranks of this host: an address rule that
// leads to no address, a congestion control that the host does not offer. It is for a program that starts the ranks, to
// report such an error once. The errors are Init's.
func (c *Config) CheckHere(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	here := &origin{kind: ByFisterra, host: shortHostname(), size: 2, localSize: 2}
	if _, _, err := published(ctx, c.own(), here); err != nil || c.Transport == "shm" || c.Transport == "mpi" {
		return err
	}
	if _, err := tcp.CongestionControl(c.CongestionControl); err != nil {
		return fmt.Errorf("mpi: %w: %w", ErrTransport, err)
	}
	return nil
}

// openMet is meetAndOpen for ranks that have met. It ends the meeting.
func openMet(ctx context.Context, cfg *Config, l *origin, m *meeting, transport string) (*World, error) {
	set, err := newSleepSet()
	if err != nil {
		err = fmt.Errorf("mpi: %w", err)
		m.giveUp(ctx, err)
		return nil, err
	}
	p, err := openProviders(cfg, l, m, set, transport)
	if err != nil {
		err = fmt.Errorf("mpi: %w: %w", ErrTransport, err)
		m.giveUp(ctx, err)
		set.close()
		return nil, err
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
func openProviders(cfg *Config, l *origin, m *meeting, set *sleepSet, choice string) (o *opened, err error) {
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
		p, err := shm.Open(shm.Config{Rank: l.rank, Size: l.size, Job: l.job, Restart: l.restart, Secret: m.secret, Set: set, Log: cfg.log(),
			HandshakeTimeout: cfg.firstContact(shm.UsualTimeout)})
		switch {
		case err == nil:
			o.all = append(o.all, p)
		case choice == "shm":
			return o, fmt.Errorf("shm: %w", err)
		default: // the others see that this rank publishes no such address
			cfg.log().Warn("no shared memory with the ranks of this host: all go by tcp", "error", err)
		}
	}
	if choice == "auto" || choice == "tcp" {
		p, err := tcp.Open(tcp.Config{
			Rank: l.rank, Size: l.size, Job: l.job, Restart: l.restart, Secret: m.secret,
			Host: m.address.String(), Set: set, Log: cfg.log(), CongestionControl: cfg.CongestionControl,
			ConnectTimeout: cfg.firstContact(tcp.UsualTimeout),
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

// orphanTime is how long a rank whose launcher is gone has for its own end.
const orphanTime = 5 * time.Second

// watchLauncher ends this process when its launcher is gone, like a hang-up
// of the terminal: SIGTERM, then SIGKILL.
func watchLauncher(fd int, log *slog.Logger) error {
	if fd < 0 {
		return nil
	}
	f, err := inherit(wire.EnvAliveFD, fd)
	if err != nil {
		return err
	}
	go func() {
		var b [1]byte
		for err == nil {
			_, err = f.Read(b[:]) // nobody writes: it returns when the launcher's end is closed
		}
		if err != io.EOF {
			log.Warn("this rank will not notice if its launcher is gone", "reason", err)
			return
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		time.Sleep(orphanTime)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
	return nil
}

// LaunchInfo is what the environment says of who started this process.
type LaunchInfo struct {
	Kind       string // one of the By constants
	Reason     string // the variables that decided it
	Rank, Size int    // Size is -1 where only the launcher's library knows it

	Native native.Launcher // which of the system's MPI libraries find the ranks
}

// Detect finds out who started this process, without connecting to anything.
func Detect(lookup func(string) (string, bool)) (LaunchInfo, error) {
	l, err := detect(lookup)
	if err != nil {
		return LaunchInfo{}, err
	}
	return LaunchInfo{Kind: l.kind, Reason: l.reason, Rank: l.rank, Size: l.size, Native: l.native}, nil
}
