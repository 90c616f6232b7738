package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// asRoot is how Open MPI's launcher wants to be asked before it runs as root.
var asRoot = words("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")

// TestClusterMPILaunchers: what the sites' MPI launchers start inside a job are
// ranks of one world, on Fisterra's own transports or on the launcher's MPI library. With its
// own library MPICH stays on one node: over several it hangs in its own Finalize.
func TestClusterMPILaunchers(t *testing.T) {
	s := onCluster(t)
	for _, c := range []struct{ name, part, launcher, command, flags, transport string }{
		{"mpirun", "openmpi", "mpirun", "salloc -N1 -n4 mpirun -n 4", "", "shm"},
		{"mpirun over nodes", "openmpi", "mpirun", "salloc -N4 --ntasks-per-node=1 mpirun -n 4", "", "tcp"},
		{"mpiexec", "mpich", "mpiexec.hydra", "salloc -N1 -n4 mpiexec.hydra -n 4", "", "shm"},
		{"mpiexec over nodes", "mpich", "mpiexec.hydra", "salloc -N4 --ntasks-per-node=1 mpiexec.hydra -n 4", "", "tcp"},
		{"srun pmix", "openmpi", "mpirun", "srun --mpi=pmix -N4 --ntasks-per-node=1", "", "tcp"},
		{"mpirun with its library", "openmpi", "mpirun", "salloc -N1 -n4 mpirun -n 4", "--transport mpi", "mpi"},
		{"mpirun with its library over nodes", "openmpi", "mpirun", "salloc -N2 --ntasks-per-node=2 mpirun -n 4", "--transport mpi", "mpi"},
		{"mpiexec with its library", "mpich", "mpiexec.hydra", "salloc -N1 -n4 mpiexec.hydra -n 4", "--transport mpi", "mpi"},
		{"srun pmix with Open MPI", "openmpi", "mpirun", "srun --mpi=pmix -N2 --ntasks-per-node=2", "--transport mpi", "mpi"},
		{"srun pmix with Open MPI, without servers", "openmpi", "mpirun", "srun --mpi=pmix -N2 --ntasks-per-node=2", "--transport mpi --ps 0", "mpi"},
		{"srun pmi2 with MPICH", "mpich", "mpiexec.hydra", "srun --mpi=pmi2 -N1 -n4", "--transport mpi", "mpi"},
	} {
		t.Run(c.name, func(t *testing.T) {
			need.Program(t, c.part, c.launcher)
			x := resultOf(t, s.Exec(within(t, longWait), words(asRoot, c.command, lab.Fisterra(t), "train --json --epochs 1 --peer-timeout 1m", c.flags)...))
			servers := 1
			if strings.Contains(c.flags, "--ps 0") {
				servers = 0
			}
			if x.Ranks != 4 || x.PS != servers || x.Workers != 4-servers || x.Transport != c.transport || len(x.Lost) != 0 || x.TestAccuracy < 0.85 {
				t.Errorf("want 4 ranks, %d of them servers, over %s: %+v", servers, c.transport, x)
			}
		})
	}
	for _, who := range []string{"auto", "native", "fisterra"} {
		t.Run("collectives "+who, func(t *testing.T) {
			need.Program(t, "openmpi", "mpirun")
			r := s.Exec(within(t, longWait), words("srun --mpi=pmix -N2 --ntasks-per-node=2", lab.Fisterra(t), "bench allreduce -c -i 5 -x 1 --sizes 8,64K --transport mpi --collectives", who)...)
			if r.Code != 0 || !strings.Contains(r.Stdout, "4 ranks on 2 hosts") || !strings.Contains(r.Stdout, "\n65536 ") {
				t.Error(r)
			}
		})
	}
}

// overMPI starts ranks over two nodes by Slurm that send through Open MPI.
const overMPI = "srun --mpi=pmix -N2 --ntasks-per-node=2"

// TestClusterMPISaves: a run over the system's MPI library saves when it is told to end, and
// goes on where it was.
func TestClusterMPISaves(t *testing.T) {
	s := slowCluster(t)
	need.Program(t, "openmpi", "mpirun")
	t.Run("signal", func(t *testing.T) {
		x := startStep(t, s, filepath.Join(s.Dir, "signal"), words(overMPI), words("--transport mpi", endless)...)
		// To all at once, as Slurm does before a time limit: the first to end takes the others along.
		if r := s.Exec(t.Context(), "scancel", "-s", "USR1", "--me"); r.Code != 0 {
			t.Fatal(r)
		}
		if code := x.wait(longWait); code != 128+10 {
			t.Errorf("exit code %d\n%s", code, x.state())
		}
		savedWhenAsked(t, x.out.String()) // whichever rank was asked first
		x.gone(stepRoles...)
	})
	t.Run("cancelled", func(t *testing.T) {
		dir := filepath.Join(s.Dir, "state")
		job := words("--nodes 2 --ntasks-per-node 2 --mpi pmix --checkpoint", dir, long, "--transport mpi")
		id := submit(t, s, job...)
		running(t, s, id, 0)
		if r := s.Exec(t.Context(), "scancel", id); r.Code != 0 {
			t.Fatal(r)
		}
		log := awaitLog(t, s, id, "the tasks ended with code", longWait)
		if !strings.Contains(log, "ended with code 143") {
			t.Errorf("the job's log does not say how it ended:\n%s", log)
		}
		savedWhenAsked(t, log)
		saved := savedStep(t, dir)
		id = submit(t, s, job...)
		if at := resumed(t, s, id, 0); at != saved || saved == 0 {
			t.Errorf("resumed at step %d, saved was %d\n%s", at, saved, jobLog(s, id))
		}
		s.Exec(t.Context(), "scancel", id)
		s.Await(t.Context(), id, "over", lab.Job.Over)
	})
}

// TestClusterMPIRankKilled: an MPI library has no word for a lost rank. The launcher
// ends the others.
func TestClusterMPIRankKilled(t *testing.T) {
	s := slowCluster(t)
	need.Program(t, "openmpi", "mpirun")
	need.Program(t, "mpich", "mpiexec.hydra")
	// By pmi2 it is srun that does, where it is asked to.
	for i, launcher := range []string{overMPI, "salloc -N2 --ntasks-per-node=2 mpirun -n 4", "srun --mpi=pmi2 -N1 -n4 --kill-on-bad-exit=0 --wait=5"} {
		t.Run(launcher, func(t *testing.T) {
			x := startStep(t, s, filepath.Join(s.Dir, fmt.Sprint(i)), words(asRoot, launcher), words("--transport mpi", endless)...)
			x.signal("worker2", "KILL")
			if code := x.wait(longWait); code == 0 {
				t.Errorf("exit code 0\n%s", x.state())
			}
			x.eventuallyGone(longWait, stepRoles...)
		})
	}
}
