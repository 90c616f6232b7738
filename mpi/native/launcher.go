package native

import (
	"fmt"
	"strconv"
)

// Launcher is what started this process, as far as its environment tells, and which
// MPI libraries would understand it.
type Launcher struct {
	Name string // "openmpi", "hydra", "pals", "slurm-pmi2", "slurm-pmix", "slurm-none", "pmix", "none"
	Rank int    // -1 if unknown
	Size int    // 0 if unknown
	Why  string // the variable that told, with its value

	sonames []string
}

var (
	openMPISonames = []string{"libmpi.so.40", "libmpi.so.80"}
	mpichSonames   = []string{"libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12", "libmpi_gnu.so.12", "libmpi_abi.so.1"}
	anySonames     = []string{"libmpi.so", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"}
)

// FromEnv tells the launcher from the environment. The order matters: inside a Slurm
// allocation mpirun and Hydra start ranks whose SLURM_ variables are those of the
// launcher's own daemons.
func FromEnv(lookup func(string) (string, bool)) Launcher {
	get := func(name string) string {
		if lookup == nil {
			return ""
		}
		v, _ := lookup(name)
		return v
	}
	found := func(name, variable, rank, size string, sonames []string) Launcher {
		return Launcher{Name: name, Rank: number(get(rank), -1), Size: number(get(size), 0),
			Why: fmt.Sprintf("%s=%s", variable, get(variable)), sonames: sonames}
	}
	slurm := get("SLURM_STEP_ID") != "" || get("SLURM_PROCID") != ""
	// As in slurm.FromEnv, which this package may not know: Hydra's ranks inherit the variables of its
	// daemons' step, but rank and size are its own.
	ofStep := get("PMI_RANK") == get("SLURM_PROCID") && get("PMI_SIZE") == get("SLURM_STEP_NUM_TASKS")
	hydra := get("MPI_LOCALRANKID") != "" && (get("SLURM_MPI_TYPE") != "pmi2" || !ofStep)
	switch {
	case get("OMPI_COMM_WORLD_SIZE") != "":
		return found("openmpi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", openMPISonames)
	case get("PALS_RANKID") != "":
		return found("pals", "PALS_RANKID", "PALS_RANKID", "PALS_SIZE", mpichSonames)
	case get("PMI_RANK") != "" && slurm && !hydra:
		return found("slurm-pmi2", "PMI_RANK", "PMI_RANK", "PMI_SIZE", mpichSonames)
	case get("PMI_RANK") != "":
		return found("hydra", "PMI_RANK", "PMI_RANK", "PMI_SIZE", mpichSonames)
	case get("PMI_PORT") != "":
		return found("hydra", "PMI_PORT", "", "", mpichSonames)
	case get("PMIX_RANK") != "":
		// PMIx alone says nothing about the library; Open MPI needs it, MPICH seldom has it.
		both := append(append([]string{}, openMPISonames...), mpichSonames...)
		if slurm {
			return found("slurm-pmix", "PMIX_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", both)
		}
		return found("pmix", "PMIX_RANK", "PMIX_RANK", "", both)
	case get("SLURM_PROCID") != "" && get("SLURM_STEP_ID") != "":
		return found("slurm-none", "SLURM_PROCID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", anySonames)
	}
	return Launcher{Name: "none", Rank: -1, Why: "no launcher's variables are set", sonames: anySonames}
}

func number(s string, otherwise int) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return otherwise
	}
	return n
}

// advice says how ranks of a library's family can be started.
func (f Family) advice() string {
	if f == OpenMPI {
		return "start Open MPI's ranks by its mpirun or by srun --mpi=pmix"
	}
	return "start this library's ranks by its own mpiexec or by srun --mpi=pmi2"
}
