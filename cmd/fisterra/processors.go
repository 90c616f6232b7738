package main

import (
	"runtime"
	"strconv"
)

// processors is what this rank may use: its cpus per task where the launcher
// says so, else its even share of what it is bound to.
func processors(env environment) int {
	if text, ok := env.lookup("SLURM_CPUS_PER_TASK"); ok {
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			return n
		}
	}
	for _, name := range []string{"FISTERRA_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"} {
		if text, ok := env.lookup(name); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				return max(1, runtime.NumCPU()/n)
			}
		}
	}
	return runtime.NumCPU()
}
