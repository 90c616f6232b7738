package native

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// No system has a library of the MPI 5.0 ABI yet, so that ABI's table is tested against
// a thin library that offers it in front of MPICH. Every constant the standard gives
// another value than MPICH passes through it, and an unknown one aborts.
func TestForumABI(t *testing.T) {
	l := launch{Launcher: lab.MPICH}
	l.needed(t)
	library := compile(t, "testdata/forum.c", "-ldl")
	for _, program := range []string{"pairs", "probes", "cancels", "errors", "collectives", "large", "groups"} {
		l.ranks(t, 2, program, libraryVariable+"="+library)
	}
}
