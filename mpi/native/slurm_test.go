package native

import (
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// Under a real Slurm: what works of the two libraries, and what must be refused.
// Debian's MPICH hangs in its own Finalize across nodes, so it runs on one.
func TestClusterLibraries(t *testing.T) {
	for _, l := range lab.Launchers() {
		if _, err := clib.Open(l.Library); err != nil {
			need.Part(t, l.Part, err.Error())
		}
	}
	s := lab.Cluster(t, 2, 2)
	program := s.TestBinary()
	srun := func(kind LauncherKind, ranks int, library, run string, args ...string) lab.Result {
		command := append([]string{"srun"}, args...)
		return s.Exec(t.Context(), append(command, "env", programVariable+"="+run, libraryVariable+"="+library, startedBy(kind, ranks), program)...)
	}
	for _, c := range []struct {
		name, library, program string
		kind                   LauncherKind
		ranks                  int
		args                   []string
		refused                string // what the error says; empty: the run must end well
	}{
		{"Open MPI by pmix over two nodes", "", "pairs", BySlurmByPMIx, 4, []string{"--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2"}, ""},
		{"Open MPI's collectives over two nodes", "", "collectives", BySlurmByPMIx, 3, []string{"--mpi=pmix", "-N2", "-n3"}, ""},
		{"MPICH by pmi2 on one node", "", "pairs", BySlurmByPMI2, 2, []string{"--mpi=pmi2", "-N1", "-n2"}, ""},
		{"MPICH without a PMI", "libmpich.so.12", "leave", BySlurm, 2, []string{"--mpi=none", "-N1", "-n2"}, "started 2 ranks"},
		{"Open MPI without a PMI", "libmpi.so.40", "leave", BySlurm, 2, []string{"--mpi=none", "-N1", "-n2"}, "without a PMI"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := srun(c.kind, c.ranks, c.library, c.program, c.args...)
			said := r.Stdout + r.Stderr
			switch {
			case c.refused == "" && r.Code != 0:
				t.Fatal(r)
			case c.refused != "" && (r.Code == 0 || !strings.Contains(said, ErrLauncher.Error()) || !strings.Contains(said, c.refused)):
				t.Fatalf("want another exit code than 0 and %q: %v", c.refused, r)
			}
			t.Log(r.Stdout)
		})
	}
}
