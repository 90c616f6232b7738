package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// TestMPICollectivesOfTheLibrary: --collectives decides who does them over
// the system's MPI, and tune measures its collectives beside our plans.
func TestMPICollectivesOfTheLibrary(t *testing.T) {
	for _, l := range lab.Launchers() {
		t.Run(l.Part, func(t *testing.T) {
			l.Needed(t)
			ranks := func(program string, args ...string) lab.Result {
				cmd := l.Command(within(t, 10*time.Minute), t, 2, program, args...)
				// It takes a whole time slice to notice that it waits for a rank without a core.
				cmd.Env = append(cmd.Env, "OMPI_MCA_mpi_yield_when_idle=1")
				return cmd.Run()
			}
			for _, who := range []string{"auto", "native", "fisterra"} {
				if r := ranks(lab.Fisterra(t), words("bench allreduce --transport mpi -c -i 20 --sizes 8,64K --collectives", who)...); r.Code != 0 || !strings.Contains(r.Stdout, "\n65536 ") {
					t.Errorf("%s: %v", who, r)
				}
			}
			differ := `c=native; [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || c=fisterra; exec "$0" bench allreduce --transport mpi --collectives $c`
			if r := ranks("sh", "-c", differ, lab.Fisterra(t)); r.Code != exitUsage || !strings.Contains(r.Stderr, `--collectives is "native" on rank 0, "fisterra" on rank 1`) {
				t.Errorf("ranks that differ: %v", r)
			}
			if l.Part == lab.OpenMPI.Part { // measuring knows no library from another
				site := filepath.Join(t.TempDir(), "site.json")
				r := ranks(lab.Fisterra(t), words("bench tune --transport mpi --op allreduce,alltoall --sizes 64K --budget 5ms --file", site)...)
				if r.Code != 0 || !strings.Contains(r.Stdout, "library=") {
					t.Errorf("tune: %v", r)
				}
				if r := ranks(lab.Fisterra(t), words("bench allreduce --transport mpi -c -i 20 --sizes 64K --site", site)...); r.Code != 0 {
					t.Errorf("with what tune wrote: %v", r)
				}
			}
		})
	}
	if r := fisterra(t, "run", "-n", "2", "--", lab.Fisterra(t), "bench", "allreduce", "--collectives", "native"); r.Code != exitAbsent || !strings.Contains(r.Stderr, "--transport mpi") {
		t.Errorf("without a library: %v", r)
	}
	if r := fisterra(t, "bench", "allreduce", "--collectives", "mine"); r.Code != exitUsage || !strings.Contains(r.Stderr, "--collectives=mine: want auto, native or fisterra") {
		t.Errorf("a word that is none: %v", r)
	}
}

// TestMPITrainOverUCX: by UCX, as on InfiniBand, Open MPI has 2²³ tags only.
func TestMPITrainOverUCX(t *testing.T) {
	lab.OpenMPI.Needed(t)
	for _, mode := range []string{"sync", "async"} {
		cmd := lab.OpenMPI.Command(t.Context(), t, 4, lab.Fisterra(t), words("train --transport mpi --epochs 1 --json --mode", mode)...)
		cmd.Env = append(cmd.Env, lab.ThroughUCX()...)
		if r := cmd.Run(); r.Code != 0 || !strings.Contains(r.Stdout, `"transport":"mpi"`) {
			t.Errorf("%s: %v", mode, r)
		}
	}
}
