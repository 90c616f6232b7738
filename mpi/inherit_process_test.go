package mpi

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// A rank whose parent has closed what the launcher passes on leaves alone what has the number now, of the Go runtime's
// for a low one, and says which variable is wrong.
func TestRankWithoutWhatItInherits(t *testing.T) {
	for _, name := range []string{wire.EnvAliveFD, wire.EnvSecretFD, wire.EnvRootFD} {
		for _, closed := range []int{4, 5, 900} {
			env := []string{
				wire.EnvRank + "=0", wire.EnvSize + "=2", wire.EnvLocalRank + "=0", wire.EnvLocalSize + "=2",
				wire.EnvJob + "=test", wire.EnvRoot + "=127.0.0.1:0", wire.EnvSecretFD + "=3", fmt.Sprintf("%s=%d", name, closed),
				rootVariable + "=" + t.TempDir(), transportVariable + "=tcp",
			}
			p := start(t, 0, exec.Command(os.Args[0], "-test.run=^TestChoosingRank$"), env, secretPipe(t, wire.NewSecret()))
			want := fmt.Sprintf("%s is %d, must be the launcher's ", name, closed)
			if line := p.await(t, "failed", patience); !strings.Contains(line, want) || !strings.Contains(line, ErrLauncher.Error()) {
				t.Errorf("%s, want %q", line, want)
			}
		}
	}
}
