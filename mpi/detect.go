package mpi

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/fisterra-hpc/fisterra/slurm"
	"github.com/fisterra-hpc/fisterra/slurm/pmi"
)

// origin is what the environment says of who started this process and which
// rank of how many it is.
type origin struct {
	kind   string // one of the By constants
	reason string // the variables that decided it

	rank, size           int
	localRank, localSize int // -1 where the launcher does not say
	node, local          int // place by which position is counted; -1: by host and rank
	host                 string

	job     string // JOB.STEP, the same on all ranks and no other job's
	restart int    // incarnation

	root     string // fisterra: host:port of rank 0
	rootFD   int    // fisterra, rank 0: that listening socket; else -1
	secretFD int    // fisterra: where the secret is read; else -1
	aliveFD  int    // fisterra: reads EOF when the launcher is gone; else -1

	step *slurm.Job // slurm

	native native.Launcher // the launcher, as the system's MPI library is to know it
}

// Kinds of launchers, as LaunchInfo and World.Launcher name them.
const (
	ByFisterra  = "fisterra"
	ByOpenMPI   = "openmpi"
	ByMPICH     = "mpich"
	ByPMI2      = "pmi2"
	ByPMIx      = "pmix"
	BySlurm     = "slurm"
	BySingleton = "singleton"
)

// detect finds out who started this process. It only reads the environment.
//
// Fisterra's own launcher goes first: it may itself run in a Slurm step. Then
// the variables of other MPI launchers, because under mpirun those of Slurm
// describe the launcher's daemons. A batch shell, which has SLURM_PROCID but no
// step, is refused rather than taken for one rank.
func detect(lookup func(string) (string, bool)) (*origin, error) {
	e := environment{lookup: lookup}
	l := &origin{localRank: -1, localSize: -1, node: -1, local: -1, rootFD: -1, secretFD: -1, aliveFD: -1}
	switch {
	case e.has(wire.EnvRank):
		l.kind, l.reason = ByFisterra, wire.EnvRank
		l.fisterra(&e)
	case e.has("OMPI_COMM_WORLD_SIZE"):
		l.kind, l.reason = ByOpenMPI, "OMPI_COMM_WORLD_SIZE"
		l.size = e.number("OMPI_COMM_WORLD_SIZE", 1)
		l.rank = e.number("OMPI_COMM_WORLD_RANK", 0)
		l.localRank = e.optional("OMPI_COMM_WORLD_LOCAL_RANK")
		l.localSize = e.optional("OMPI_COMM_WORLD_LOCAL_SIZE")
		l.job = e.text("OMPI_MCA_ess_base_jobid", e.text("PMIX_NAMESPACE", ""))
	case pmi.Present(lookup), e.has("PMI_RANK") && e.has("PMI_SIZE"):
		l.pmi(&e)
	case e.has("PMIX_RANK"):
		l.kind, l.reason = ByPMIx, "PMIX_RANK"
		// srun --mpi=pmix: the step says all that is needed, without libpmix.
		if l.inStep(&e) {
			l.reason += " inside a Slurm step"
			break
		}
		l.rank = e.number("PMIX_RANK", 0)
		l.job = e.text("PMIX_NAMESPACE", "")
		l.size = -1 // only libpmix knows
	default:
		step, err := slurm.FromEnv(lookup)
		switch {
		case err == nil:
			l.fromStep(step)
			l.kind, l.reason = BySlurm, "SLURM_STEP_ID"
		case errors.Is(err, slurm.ErrNotSlurm):
			l.kind, l.reason = BySingleton, "no launcher's variables are set"
			l.size, l.localSize, l.localRank, l.job = 1, 1, 0, "singleton"
		default:
			return nil, fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
		}
	}
	if e.err == nil && l.size >= 0 && l.rank >= l.size {
		e.err = fmt.Errorf("rank %d, but the job has %d ranks", l.rank, l.size)
	}
	if e.err != nil {
		return nil, fmt.Errorf("mpi: %w: started by %s (%s): %w", ErrLauncher, l.kind, l.reason, e.err)
	}
	l.native = native.Launcher{Kind: l.nativeKind(&e), Why: l.reason}
	return l, nil
}

// nativeKind is the launcher as the system's MPI library is to know it.
func (l *origin) nativeKind(e *environment) native.LauncherKind {
	switch {
	case l.kind == ByOpenMPI:
		return native.ByOpenMPI
	case l.kind == ByMPICH && e.has("PALS_RANKID"):
		return native.ByPALS
	case l.kind == ByMPICH:
		return native.ByHydra
	case l.kind == ByPMI2:
		return native.BySlurmByPMI2
	case l.kind == ByPMIx && l.step != nil:
		return native.BySlurmByPMIx
	case l.kind == ByPMIx:
		return native.ByPMIx
	case l.kind == BySlurm:
		return native.BySlurm
	}
	return native.NoLauncher
}

func (l *origin) fisterra(e *environment) {
	l.rank = e.number(wire.EnvRank, 0)
	l.size = e.number(wire.EnvSize, 1)
	l.localRank = e.optional(wire.EnvLocalRank)
	l.localSize = e.optional(wire.EnvLocalSize)
	l.job = e.required(wire.EnvJob)
	if e.has(wire.EnvRestart) {
		l.restart = e.number(wire.EnvRestart, 0)
	}
	if l.size == 1 {
		return
	}
	l.root = e.required(wire.EnvRoot)
	l.secretFD = e.number(wire.EnvSecretFD, 3)
	l.aliveFD = e.optional(wire.EnvAliveFD)
	l.rootFD = e.optional(wire.EnvRootFD) // without it rank 0 listens on root itself
}

// pmi is a rank of a process manager: srun --mpi=pmi2, or mpiexec.hydra and its relatives.
func (l *origin) pmi(e *environment) {
	l.kind, l.reason = ByMPICH, "PMI_RANK"
	for _, name := range []string{"PMI_FD", "PMI_PORT"} {
		if e.has(name) {
			l.reason = name
			break
		}
	}
	if l.inStep(e) {
		l.kind, l.reason = ByPMI2, l.reason+" inside a Slurm step"
		return
	}
	l.localRank = e.optional("MPI_LOCALRANKID")
	l.localSize = e.optional("MPI_LOCALNRANKS")
	if e.has("PMI_RANK") {
		l.rank, l.size = e.number("PMI_RANK", 0), e.number("PMI_SIZE", 1)
	} else {
		l.size = -1 // PMI_PORT: the process manager says it
	}
}

// inStep takes what Slurm says of a rank that a process manager started, and reports whether the rank is a task of a Slurm
// step. If it is none, that is no error: the process manager may not be Slurm's. Wrong variables of Slurm's are an error.
func (l *origin) inStep(e *environment) bool {
	step, err := slurm.FromEnv(e.lookup)
	switch {
	case err == nil:
		l.fromStep(step)
	case errors.Is(err, slurm.ErrNotSlurm), errors.Is(err, slurm.ErrNoStep), errors.Is(err, slurm.ErrDaemonStep):
	case e.err == nil:
		e.err = err
	}
	return err == nil
}

func (l *origin) fromStep(step *slurm.Job) {
	l.step = step
	l.rank, l.size = step.Rank, step.Size()
	l.localRank, l.localSize = step.Local, step.Layout.Tasks[step.Node]
	l.node, l.local = step.Node, step.Local
	l.host = step.Layout.Nodes[step.Node]
	l.job = fmt.Sprintf("%d.%s", step.JobID, step.StepID)
	l.restart = step.Restart
}

// identity is the job.step.restart of the hello.
func (l *origin) identity() string { return fmt.Sprintf("%s.%d", l.job, l.restart) }

// environment reads variables and keeps the first thing that is wrong.
type environment struct {
	lookup func(string) (string, bool)
	err    error
}

func (e *environment) has(name string) bool {
	v, ok := e.lookup(name)
	return ok && strings.TrimSpace(v) != ""
}

func (e *environment) text(name, otherwise string) string {
	if v, ok := e.lookup(name); ok && v != "" {
		return v
	}
	return otherwise
}

func (e *environment) required(name string) string {
	v := e.text(name, "")
	if v == "" && e.err == nil {
		e.err = fmt.Errorf("%s is not set", name)
	}
	return v
}

// number reads a variable that must be there and at least low.
func (e *environment) number(name string, low int) int {
	v := e.required(name)
	n, err := strconv.Atoi(strings.TrimSpace(v))
	if (err != nil || n < low || n > 1<<30) && e.err == nil {
		e.err = fmt.Errorf("%s is %q, must be a number from %d on", name, v, low)
	}
	return n
}

// optional is -1 for a variable that is not set.
func (e *environment) optional(name string) int {
	if !e.has(name) {
		return -1
	}
	return e.number(name, 0)
}

// lookup is how the configuration says that the environment is read.
func (c *Config) lookup() func(string) (string, bool) {
	if c.Lookup != nil {
		return c.Lookup
	}
	return os.LookupEnv
}
