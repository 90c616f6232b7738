package mpi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/pmix"
	"github.com/fisterra-hpc/fisterra/slurm/pmi"
)

// manager is a process manager's key-value space: PMI-1, PMI-2, PMIx. It is
// asked for one thing only: where position 0 listens, and the secret if nobody else can
// read it there. Everything more goes over the ranks' own connections.
type manager interface {
	Put(ctx context.Context, key string, value []byte) error
	Fence(ctx context.Context) error
	Get(ctx context.Context, key string) ([]byte, error)
	Finalize(ctx context.Context) error
}

// managerKey is put once in the life of the job.
const managerKey = "fisterra-root"

// notice is what position 0 puts there.
type notice struct {
	Address string   // host:port
	Secret  []byte   // nil if it is to be had elsewhere
	Refusal *refusal // why there will be no world, and neither of the others
}

// askManager opens the process manager's space where there is one, and learns from it what the environment did not say.
// If the space cannot be reached, more than one rank is an error: else each rank would be a world of its own.
func (m *meeting) askManager(ctx context.Context) error {
	l := m.l
	switch l.kind {
	case ByMPICH, ByPMI2:
		if !pmi.Present(m.cfg.lookup()) {
			if l.step != nil { // rank and size without PMI to meet by (Slurm's cray_shasta): the step's own rendezvous will do
				return nil
			}
			return fmt.Errorf("mpi: %w: rank %d of %d of a process manager (%s), but neither PMI_FD nor PMI_PORT is set, by which ranks could meet without an MPI library; "+
				"use the one of this launcher (Config.Transport, --transport mpi), or start with srun or mpiexec.hydra", ErrLauncher, l.rank, l.size, l.reason)
		}
		client, err := pmi.Open(ctx, m.cfg.lookup(), pmi.Config{})
		if err != nil {
			return fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
		}
		if l.size >= 0 && (client.Size() != l.size || client.Rank() != l.rank) {
			client.Close()
			return fmt.Errorf("mpi: %w: the environment says rank %d of %d, the process manager rank %d of %d", ErrLauncher, l.rank, l.size, client.Rank(), client.Size())
		}
		l.rank, l.size = client.Rank(), client.Size()
		if l.step == nil {
			l.job = client.JobID()
		}
		m.manager = client
	case ByOpenMPI, ByPMIx:
		if l.step != nil {
			// With a directory for keys, which is the same for all ranks, the step's own rendezvous says what is wrong with it.
			if _, m.keyless = findKeyring(ctx, m.cfg, l, m.cfg.lookup()); m.keyless == nil || m.cfg.SecretDir != "" {
				m.keyless = nil
				return nil // the step's own rendezvous
			}
			m.cfg.log().Info("meeting through PMIx", "reason", m.keyless)
		}
		client, err := pmix.Open(ctx, m.cfg.lookup(), pmix.Config{Log: m.cfg.log()})
		if err != nil && m.keyless != nil {
			return fmt.Errorf("%w; nor can they meet through PMIx: %w", m.keyless, err)
		}
		if err != nil {
			return fmt.Errorf("mpi: %w: started by %s (%s) with more than one rank, which can meet only through its PMIx server; "+
				"else start with fisterra run, srun or mpiexec.hydra: %w", ErrLauncher, l.kind, l.reason, err)
		}
		if l.size >= 0 && (client.Size() != l.size || client.Rank() != l.rank) {
			_ = client.Finalize(ctx) // the disagreement is what matters
			return fmt.Errorf("mpi: %w: the environment says rank %d of %d, the PMIx server rank %d of %d", ErrLauncher, l.rank, l.size, client.Rank(), client.Size())
		}
		m.manager = pmixSpace{client}
		if l.step != nil {
			return nil // Slurm has said the rest
		}
		l.rank, l.size, l.job = client.Rank(), client.Size(), client.JobID()
		l.localRank = client.LocalRank()
		if n := client.LocalSize(); n > 0 {
			l.localSize = n
		}
	}
	return nil
}

// pmixSpace is PMIx's space as far as it is needed: only position 0 puts anything.
type pmixSpace struct{ *pmix.Client }

// Get is what position 0 has put. PMIx keeps values by rank, and the rank of position 0 is not known: it need not be 0 in a
// step whose ranks were dealt out by a list of hosts. So the ranks' values are asked for one after the other.
func (s pmixSpace) Get(ctx context.Context, key string) (value []byte, err error) {
	for rank := range s.Size() {
		if value, err = s.Client.Get(ctx, rank, key); !errors.Is(err, pmix.ErrNotFound) {
			return value, err
		}
	}
	return nil, err
}

// managerKeepsSecrets reports whether only ranks of this job can read the space.
// PMI_FD is inherited. PMI_PORT answers whoever connects. A PMIx server believes
// what a process of its host says of its uid, so it is used for want of better.
func (m *meeting) managerKeepsSecrets() bool {
	fd, ok := m.cfg.lookup()("PMI_FD")
	_, isPMI := m.manager.(*pmi.Client)
	return isPMI && ok && fd != ""
}

// zeroKeyring is position 0's choice of how the others come by the secret; nil: through the space itself. A PMIx server's
// space does not stand in for a directory that was asked for.
func (m *meeting) zeroKeyring(ctx context.Context) (*keyring, error) {
	if m.managerKeepsSecrets() {
		return nil, nil
	}
	k, err := findKeyring(ctx, m.cfg, m.l, m.cfg.lookup())
	if _, isPMIx := m.manager.(pmixSpace); isPMIx && err != nil && m.cfg.SecretDir == "" {
		return nil, nil
	}
	return k, err
}

// tellManager is position 0's side: it puts into the space where it listens, or why it does not (failed). It returns failed
// if that is set.
func (m *meeting) tellManager(ctx context.Context, k *keyring, failed error) error {
	var n notice
	switch {
	case failed != nil:
		no := refuse(fmt.Errorf("mpi: position 0 (rank %d on %s) cannot start: %w", m.l.rank, m.l.host, failed))
		n.Refusal = &no
	case k == nil:
		n.Secret = m.secret
		fallthrough
	default:
		n.Address = m.door.Addr().String()
	}
	err := m.manager.Put(ctx, managerKey, encodeJSON(n))
	if err == nil {
		err = m.manager.Fence(ctx)
	}
	switch {
	case failed != nil:
		return failed // it tells more than that the others could not be told
	case err != nil:
		return fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
	}
	return nil
}

// hearManager is the others' side: where position 0 is, and the secret if it
// is there too.
func (m *meeting) hearManager(ctx context.Context) error {
	err := m.manager.Fence(ctx)
	var value []byte
	if err == nil {
		value, err = m.manager.Get(ctx, managerKey)
	}
	var n notice
	if err == nil {
		n, err = decodeJSON[notice](value)
	}
	if err == nil && n.Refusal != nil {
		return n.Refusal.err()
	}
	if err == nil {
		if _, wrong := netip.ParseAddrPort(n.Address); wrong != nil {
			err = fmt.Errorf("%s is %q, must be an address and a port: %w", managerKey, n.Address, wrong)
		}
	}
	if err == nil && n.Secret != nil && len(n.Secret) != wire.SecretBytes {
		err = fmt.Errorf("secret of %d bytes, must be %d", len(n.Secret), wire.SecretBytes)
	}
	if err != nil {
		err = fmt.Errorf("mpi: %w: where position 0 listens: %w", ErrLauncher, err)
		if m.keyless != nil { // ranks on other hosts may have a key, and then do not meet through PMIx
			err = fmt.Errorf("%w; the ranks were to meet through PMIx, since on %s %w", err, m.l.host, m.keyless)
		}
		return err
	}
	m.zeroAddress, m.secret = n.Address, n.Secret
	return nil
}

// leaveManager says goodbye: Hydra takes a rank that ends without it for a
// failed one. A rank says it after all have met over their own connections, or when it gives up.
func (m *meeting) leaveManager(ctx context.Context) error {
	if m.manager == nil {
		return nil
	}
	err := m.manager.Finalize(ctx)
	m.manager = nil
	return err
}
