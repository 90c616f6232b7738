package slurm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
)

// Random lists of several brackets, widths, steps back and repeats: Expand and
// Compress answer as the scontrol of this machine does.
func TestHostlistsAgainstScontrol(t *testing.T) {
	scontrol := need.Program(t, "slurm", "scontrol")
	// scontrol wants a configuration it can read, but no daemon.
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n0\nPartitionName=p Nodes=n0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ask := func(what, expr string) string {
		t.Helper()
		cmd := exec.Command(scontrol, "show", what, expr)
		cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("scontrol show %s %s: %v", what, expr, err)
		}
		return strings.TrimSpace(string(out))
	}
	const seed = 3
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		elements := make([]string, 1+random.IntN(5))
		for i := range elements {
			elements[i] = randomElement(random)
		}
		expr := strings.Join(elements, ",")
		names, err := Expand(expr)
		if want := ask("hostnames", expr); err != nil || strings.Join(names, "\n") != want {
			t.Errorf("Expand(%q) = %q, %v; scontrol says %q", expr, names, err, want)
			continue
		}
		packed, err := Compress(names)
		if want := ask("hostlist", strings.Join(names, ",")); err != nil || packed != want {
			t.Errorf("Compress(%q) = %q, %v; scontrol says %q", names, packed, err, want)
		}
	}
}

func randomElement(random *rand.Rand) string {
	var b strings.Builder
	for range 1 + random.IntN(3) {
		b.WriteString([]string{"n", "rack", "gpu-a", "x1000c", "m0"}[random.IntN(5)])
		b.WriteByte('[')
		for i := range 1 + random.IntN(3) {
			if i > 0 {
				b.WriteByte(',')
			}
			lo := random.IntN(12)
			fmt.Fprintf(&b, "%0*d", 1+random.IntN(3), lo)
			if random.IntN(2) == 0 {
				fmt.Fprintf(&b, "-%d", lo+random.IntN(4))
			}
		}
		b.WriteByte(']')
	}
	if random.IntN(4) == 0 {
		return strings.NewReplacer("[", "", "]", "", ",", "").Replace(b.String()) // a plain name
	}
	return b.String()
}
