package main

import (
	"os/exec"
	"path/filepath"
	"strings"
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

// TestClusterSlurmPackages runs inside the cluster the tests of package slurm
// that want a running controller.
func TestClusterSlurmPackages(t *testing.T) {
	s := onCluster(t)
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ pkg, test string }{
		{"slurm", "TestSbatchTakesScripts"},
		{"slurm/pmi", "TestUnderSrun"},
	} {
		binary := filepath.Join(s.Dir, strings.ReplaceAll(c.pkg, "/", "-")+".test")
		build := exec.CommandContext(within(t, 2*time.Minute), "go", "test", "-c", "-o", binary, "./"+c.pkg)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		cmd := s.Command(within(t, 90*time.Second), binary, "-test.v", "-test.run", "^"+c.test+"$")
		cmd.Dir = filepath.Join(root, c.pkg)
		if r := cmd.Run(); r.Code != 0 || !strings.Contains(r.Stdout, "--- PASS: "+c.test) {
			t.Errorf("%s: %v", c.test, r)
		}
	}
}
