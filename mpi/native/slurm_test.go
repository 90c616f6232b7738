package native

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// Under a real Slurm: what works of the two libraries, and what must be refused.
// Debian's MPICH hangs in its own Finalize across nodes, so it runs on one.
func TestUnderSlurm(t *testing.T) {
	if !clib.Available {
		t.Skip("built without support for C libraries")
	}
	for part, name := range map[string]string{"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"} {
		why := ""
		if _, err := clib.Open(name); err != nil {
			why = err.Error()
		}
		need.Part(t, part, why)
	}
	s := lab.Cluster(t, 2, 2)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(s.Dir, "native.test")
	b, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	srun := func(library, run string, args ...string) lab.Result {
		command := append([]string{"srun"}, args...)
		return s.Exec(t.Context(), append(command, "env", programVariable+"="+run, libraryVariable+"="+library, program)...)
	}
	for _, c := range []struct {
		name, library, program string
		args                   []string
		refused                string // what the error says; empty: the run must end well
	}{
		{"Open MPI by pmix over two nodes", "", "pairs", []string{"--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2"}, ""},
		{"Open MPI's collectives over two nodes", "", "collectives", []string{"--mpi=pmix", "-N2", "-n3"}, ""},
		{"MPICH by pmi2 on one node", "", "pairs", []string{"--mpi=pmi2", "-N1", "-n2"}, ""},
		{"MPICH without a PMI", "libmpich.so.12", "leave", []string{"--mpi=none", "-N1", "-n2"}, "started 2 ranks"},
		{"Open MPI without a PMI", "libmpi.so.40", "leave", []string{"--mpi=none", "-N1", "-n2"}, "without a PMI"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := srun(c.library, c.program, c.args...)
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
