package main

import (
	"strconv"

	"github.com/fisterra-hpc/fisterra/slurm"
)

// processors is how many of the processors that this rank is bound to it may use: an even share of them where its
// launcher has started several ranks here, under srun what Slurm has given the task. A launcher's own variables
// come first, since Slurm's may describe the launcher's step.
func processors(lookup slurm.Lookup, bound int) int {
	for _, name := range []string{"FISTERRA_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"} {
		if text, ok := lookup(name); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				return max(1, bound/n)
			}
		}
	}
	if step, err := slurm.FromEnv(lookup); err == nil {
		return min(bound, step.CPUs())
	}
	return bound
}
