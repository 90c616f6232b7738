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
// ranks of one world on Fisterra's own transports, without any MPI library.
func TestClusterMPILaunchers(t *testing.T) {
	s := onCluster(t)
	for _, c := range []struct{ name, part, launcher, command string }{
		{"mpich", "mpich", "mpiexec.hydra", "salloc -N1 -n4 mpiexec.hydra -n 4"},
		{"pmix", "openmpi", "mpirun", "srun --mpi=pmix -N4 --ntasks-per-node=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.launcher); err != nil {
				need.Part(t, c.part, err.Error())
			}
			x := resultOf(t, s.Exec(within(t, time.Minute), words(c.command, lab.Fisterra(t), "train --json --epochs 1")...))
			if x.Ranks != 4 || x.PS != 1 || x.Workers != 3 || x.Transport != "shm" && x.Transport != "tcp" {
				t.Errorf("%+v", x)
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
