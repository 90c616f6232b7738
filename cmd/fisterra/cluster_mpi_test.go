package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// TestClusterMPILaunchers: what the sites' MPI launchers start inside a job are
// ranks of one world, on Fisterra's own transports or on the launcher's MPI library. MPICH stays
// on one node: over several it hangs in its own Finalize.
func TestClusterMPILaunchers(t *testing.T) {
	s := onCluster(t)
	for _, c := range []struct{ name, part, launcher, command, flags, transport string }{
		{"mpirun", "openmpi", "mpirun", "salloc -N1 -n4 mpirun -n 4", "", "shm"},
		{"mpiexec", "mpich", "mpiexec.hydra", "salloc -N1 -n4 mpiexec.hydra -n 4", "", "shm"},
		{"srun pmix", "openmpi", "mpirun", "srun --mpi=pmix -N4 --ntasks-per-node=1", "", "tcp"},
		{"mpirun with its library", "openmpi", "mpirun", "salloc -N1 -n4 mpirun -n 4", "--transport mpi", "mpi"},
		{"mpiexec with its library", "mpich", "mpiexec.hydra", "salloc -N1 -n4 mpiexec.hydra -n 4", "--transport mpi", "mpi"},
		{"srun pmix with Open MPI", "openmpi", "mpirun", "srun --mpi=pmix -N2 --ntasks-per-node=2", "--transport mpi", "mpi"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.launcher); err != nil {
				need.Part(t, c.part, err.Error())
			}
			// Open MPI wants to be asked twice before it runs as root.
			root := words("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
			x := resultOf(t, s.Exec(within(t, time.Minute), words(root, c.command, lab.Fisterra(t), "train --json --epochs 1", c.flags)...))
			if x.Ranks != 4 || x.PS != 1 || x.Workers != 3 || x.Transport != c.transport || len(x.Lost) != 0 || x.TestAccuracy < 0.85 {
				t.Errorf("want 4 ranks over %s: %+v", c.transport, x)
			}
		})
	}
}
