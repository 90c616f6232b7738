package native

import "slices"

// Launcher is who started the ranks, as far as that decides which MPI libraries find
// them. The caller has found it out: this package reads no launcher's variables.
type Launcher struct {
	Kind LauncherKind
	Why  string // what told, for messages
}

// LauncherKind is a way to start ranks; the zero value is NoLauncher.
type LauncherKind string

// Kinds of launchers.
const (
	NoLauncher    LauncherKind = ""
	ByOpenMPI     LauncherKind = "openmpi"
	ByHydra       LauncherKind = "hydra" // and its relatives, of MPICH's family
	ByPALS        LauncherKind = "pals"
	ByPMIx        LauncherKind = "pmix"
	BySlurm       LauncherKind = "slurm-none" // srun without a process manager
	BySlurmByPMI2 LauncherKind = "slurm-pmi2"
	BySlurmByPMIx LauncherKind = "slurm-pmix"
)

func (l Launcher) String() string {
	text := "launcher " + string(l.Kind)
	if l.Kind == NoLauncher {
		text = "no launcher"
	}
	if l.Why != "" {
		text += " (" + l.Why + ")"
	}
	return text
}

var (
	openMPISonames = []string{"libmpi.so.40", "libmpi.so.80"}
	mpichSonames   = []string{"libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12", "libmpi_gnu.so.12", "libmpi_abi.so.1"}
	anySonames     = []string{"libmpi.so", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"}
)

// sonames are the libraries to look for. implied reports whether they are those that understand the launcher; else
// they are what loaders commonly find.
func (l Launcher) sonames() (names []string, implied bool) {
	switch l.Kind {
	case ByOpenMPI:
		return openMPISonames, true
	case ByHydra, ByPALS, BySlurmByPMI2:
		return mpichSonames, true
	case ByPMIx, BySlurmByPMIx:
		// PMIx alone says nothing about the library; Open MPI needs it, MPICH seldom has it.
		return slices.Concat(openMPISonames, mpichSonames), true
	}
	return anySonames, false
}

// advice says how ranks of a library's family can be started.
func (f Family) advice() string {
	if f == OpenMPI {
		return "start Open MPI's ranks by its mpirun or by srun --mpi=pmix"
	}
	return "start this library's ranks by its own mpiexec or by srun --mpi=pmi2 (Intel MPI: with I_MPI_PMI_LIBRARY naming Slurm's libpmi2.so)"
}
