package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// TestCollectivesOfTheSystemsLibrary: --collectives decides who does them over
// the system's MPI, and tune measures its collectives beside our plans.
func TestCollectivesOfTheSystemsLibrary(t *testing.T) {
	for _, l := range []struct {
		part string
		argv []string
	}{
		{"openmpi", words("mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n 2")},
		{"mpich", words("mpiexec.mpich -n 2")},
	} {
		t.Run(l.part, func(t *testing.T) {
			why := ""
			if _, err := exec.LookPath(l.argv[0]); err != nil {
				why = err.Error()
			}
			need.Part(t, l.part, why)
			ranks := func(args ...string) lab.Result {
				argv := words(l.argv, args)
				cmd := lab.Command(within(t, goodbyeTime), t, argv[0], argv[1:]...)
				// Open MPI wants a short path for its sockets, and takes a whole time slice to notice that it waits for a rank without a core.
				cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "OMPI_MCA_mpi_yield_when_idle=1")
				return cmd.Run()
			}
			for _, who := range []string{"auto", "native", "fisterra"} {
				if r := ranks(words(lab.Fisterra(t), "bench allreduce --transport mpi -c -i 20 --sizes 8,64K --collectives", who)...); r.Code != 0 || !strings.Contains(r.Stdout, "\n65536 ") {
					t.Errorf("%s: %v", who, r)
				}
			}
			site := filepath.Join(t.TempDir(), "site.json")
			r := ranks(words(lab.Fisterra(t), "bench tune --transport mpi --sizes 64K --budget 5ms --file", site)...)
			if r.Code != 0 || !strings.Contains(r.Stdout, "library=") {
				t.Errorf("tune: %v", r)
			}
			if r := ranks(words(lab.Fisterra(t), "bench allreduce --transport mpi -c -i 20 --sizes 64K --site", site)...); r.Code != 0 {
				t.Errorf("with what tune wrote: %v", r)
			}
			differ := `c=native; [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || c=fisterra; exec "$0" bench allreduce --transport mpi --collectives $c`
			if r := ranks("sh", "-c", differ, lab.Fisterra(t)); r.Code != exitUsage || !strings.Contains(r.Stderr, `--collectives is "native" on rank 0, "fisterra" on rank 1`) {
				t.Errorf("ranks that differ: %v", r)
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

// TestTrainOverUCX: by UCX, as on InfiniBand, Open MPI has 2²³ tags only.
func TestTrainOverUCX(t *testing.T) {
	why := ""
	if _, err := exec.LookPath("mpirun.openmpi"); err != nil {
		why = err.Error()
	}
	need.Part(t, "openmpi", why)
	for _, mode := range []string{"sync", "async"} {
		cmd := lab.Command(within(t, goodbyeTime), t, "mpirun.openmpi", words("--allow-run-as-root --oversubscribe --bind-to none -n 4",
			lab.Fisterra(t), "train --transport mpi --epochs 1 --json --mode", mode)...)
		cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "OMPI_MCA_pml=ucx", "OMPI_MCA_pml_ucx_tls=any", "OMPI_MCA_pml_ucx_devices=any")
		if r := cmd.Run(); r.Code != 0 || !strings.Contains(r.Stdout, `"transport":"mpi"`) {
			t.Errorf("%s: %v", mode, r)
		}
	}
}
