package lab

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
)

// Launcher starts ranks by a system's MPI library, as Debian has it: with two libraries installed, the program of each has a
// name of its own.
type Launcher struct {
	Part    string   // package need's name of the library
	Argv    []string // the program and its flags, all but the number of ranks
	Library string   // soname of the library that ranks load
}

// The launchers. Open MPI has to be told that more ranks than cores, and root, are allowed.
var (
	OpenMPI = Launcher{"openmpi", []string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}, "libmpi.so.40"}
	MPICH   = Launcher{"mpich", []string{"mpiexec.mpich"}, "libmpich.so.12"}
)

// Launchers are both.
func Launchers() []Launcher { return []Launcher{OpenMPI, MPICH} }

// ThroughUCX is the environment in which Open MPI uses UCX, as on InfiniBand, which Debian's
// does not do by itself.
func ThroughUCX() []string {
	return []string{"OMPI_MCA_pml=ucx", "OMPI_MCA_pml_ucx_tls=any", "OMPI_MCA_pml_ucx_devices=any"}
}

// Needed ends the test where the launcher is not there.
func (l Launcher) Needed(t testing.TB) {
	t.Helper()
	need.Program(t, l.Part, l.Argv[0])
}

// Other is the other library's.
func (l Launcher) Other() Launcher {
	if l.Part == OpenMPI.Part {
		return MPICH
	}
	return OpenMPI
}

// Command prepares n ranks of a program, as Command does. Its Env is this process's, with
// a directory for temporary files that is short enough for Open MPI's sockets.
func (l Launcher) Command(ctx context.Context, t testing.TB, n int, program string, args ...string) *Cmd {
	argv := append(append([]string{}, l.Argv[1:]...), "-n", strconv.Itoa(n), program)
	cmd := Command(ctx, t, l.Argv[0], append(argv, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp")
	return cmd
}
