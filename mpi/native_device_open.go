package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// openNative makes this process a rank of the world of the system's MPI
// library, which open opens. The library brings the ranks together and carries their cards,
// from which every rank makes the same roster, or the same refusal. It blocks until all ranks have
// come, ctx ends, or StartTimeout is over.
func openNative(ctx context.Context, cfg *Config, l *origin, open func() (*native.Library, error), rdma rdmaCheck) (*World, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.startTimeout(), startTimeout(cfg.startTimeout()))
	defer cancel()
	if l.kind == ByFisterra && l.size > 1 {
		return nil, fmt.Errorf("mpi: %w: ranks started by fisterra run are strangers to an MPI library: start them by mpirun, mpiexec or srun, or use another transport than mpi", ErrLauncher)
	}
	registrations, err := registrationRule(cfg.lookup())
	if err != nil {
		return nil, err
	}
	library, err := open()
	if err != nil {
		return nil, fmt.Errorf("mpi: %w: %w", ErrTransport, err)
	}
	lib, err := library.Init(ctx, native.Options{Ranks: max(l.size, 0), Registrations: registrations, Fence: fenceOf(library, cfg, l)})
	switch {
	case errors.Is(err, native.ErrLauncher):
		return nil, fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
	case err != nil:
		return nil, fmt.Errorf("mpi: %w: %w", ErrTransport, err)
	}
	w, err := joinNative(ctx, lib, cfg, l, rdma)
	if err != nil {
		// All ranks come to the same refusal, so that they can end MPI together. MPICH's launcher would take a process
		// that exited without ending MPI for one that ended normally.
		if closing := lib.Close(ctx); closing != nil {
			cfg.log().Warn("MPI has not been ended", "error", closing)
		}
		return nil, err
	}
	return w, nil
}

// registrationsVariable says when cached registrations of buffers on the Go heap are
// dropped: "auto" where the host has an RDMA device, "always", for devices that do not show in
// /sys/class/infiniband, or "never", where all large buffers are memory from Alloc.
const registrationsVariable = "FISTERRA_MPI_REGISTRATIONS"

func registrationRule(lookup func(string) (string, bool)) (native.Registrations, error) {
	switch value, _ := lookup(registrationsVariable); value {
	case "", "auto":
		return native.ForgetOnRDMA, nil
	case "always":
		return native.ForgetAlways, nil
	case "never":
		return native.ForgetNever, nil
	default:
		return 0, fmt.Errorf("mpi: %w: %s=%q in the environment: want auto, always or never", ErrTransport, registrationsVariable, value)
	}
}

// nativeCard is what a rank tells the others.
type nativeCard struct {
	Card     card
	Launched int  // its rank as the launcher told, -1 if not
	Idle     bool // its library was to open an RDMA device, and has not
}

func joinNative(ctx context.Context, lib *native.World, cfg *Config, l *origin, rdma rdmaCheck) (*World, error) {
	if l.host == "" {
		l.host = shortHostname()
	}
	rank, size := lib.Comm().Rank(), lib.Comm().Size()
	own := nativeCard{Launched: l.rank, Idle: rdma.idle(cfg), Card: card{
		Protocol: protocolVersion, Rank: rank, Size: size, Node: l.node, Local: l.local, Host: l.host, Processors: processors(), Layout: cfg.Layout,
	}}
	if l.size < 0 { // not told, but what the launcher says of this rank shows if each rank is a world of its own
		if least := max(l.rank+1, l.localSize); size < least {
			return nil, fmt.Errorf("mpi: %w: %s sees %d ranks, but the launcher (%s) has at least %d: it does not start this library's ranks; name one whose it starts (Config.MPILibrary, --mpi-library)",
				ErrLauncher, lib.Library(), size, l.reason, least)
		}
		if l.kind != ByPMIx {
			own.Launched = -1
		}
	}
	bodies, err := exchangeCards(ctx, lib, encodeJSON(own))
	if err != nil {
		return nil, fmt.Errorf("mpi: ranks cannot tell each other where they are: %w", err)
	}
	cards, told := make([]card, size), make([]nativeCard, size)
	for r, b := range bodies {
		c, err := decodeJSON[nativeCard](b)
		if err != nil {
			return nil, fmt.Errorf("mpi: card of rank %d: %w", r, err)
		}
		if c.Launched >= 0 && c.Launched != r {
			return nil, fmt.Errorf("mpi: %w: rank %d of %s is rank %d of the launcher (%s)", ErrLauncher, r, lib.Library(), c.Launched, l.kind)
		}
		cards[r], told[r] = c.Card, c
	}
	roster, err := newRoster(cards)
	if err != nil {
		return nil, fmt.Errorf("mpi: %w", err)
	}
	switch err := idleRanks(told, lib.Library().String()); {
	case err == nil:
	case rdma.required:
		return nil, fmt.Errorf("mpi: %w: InfiniBand is asked for, but %w", ErrTransport, err)
	case rank == 0:
		cfg.log().Warn("no RDMA", "because", err)
	}
	host, err := openHostMemory(ctx, lib, cfg)
	if err != nil {
		return nil, fmt.Errorf("mpi: ranks cannot tell each other where their memory is: %w", err)
	}
	lib.ReadFrom(host.processes, host.readers)
	d, err := newNativeDevice(ctx, lib, host, cfg)
	if err != nil {
		host.close()
		return nil, fmt.Errorf("mpi: %w: %w", ErrTransport, err)
	}
	w := newWorld(Assembly{
		Rank: rank, Members: roster.members(), Membership: nativeMembership{d}, Launcher: l.kind, Log: cfg.log(),
	}, d)
	w.adopt(d)
	if w.crowded() {
		lib.Crowd()
	}
	d.stopped.Add(1)
	go d.keep()
	return w, nil
}

// exchangeCards gives every rank the cards of all, by the library's own collectives.
func exchangeCards(ctx context.Context, lib *native.World, own []byte) ([][]byte, error) {
	c := lib.Comm()
	var r native.Request
	lengths := make([]byte, 8*c.Size())
	if err := c.Iallgather(&r, binary.NativeEndian.AppendUint64(nil, uint64(len(own))), lengths, native.Int64); err != nil {
		return nil, err
	}
	if _, err := lib.Wait(ctx, &r); err != nil {
		return nil, err
	}
	counts, total := make([]int, c.Size()), 0
	for i := range counts {
		counts[i] = int(binary.NativeEndian.Uint64(lengths[8*i:]))
		total += counts[i]
	}
	all := make([]byte, total)
	if err := c.Iallgatherv(&r, own, all, counts, native.Byte); err != nil {
		return nil, err
	}
	if _, err := lib.Wait(ctx, &r); err != nil {
		return nil, err
	}
	cards := make([][]byte, c.Size())
	for i, n := range counts {
		cards[i], all = all[:n:n], all[n:]
	}
	return cards, nil
}
