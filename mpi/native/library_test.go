package native

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

func TestLauncherFromEnvironment(t *testing.T) {
	for _, c := range []struct {
		env        string
		name       string
		rank, size int
		first      string // the first library tried
	}{
		{"", "none", -1, 0, "libmpi.so"},
		{"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 PMIX_RANK=3 SLURM_PROCID=0 SLURM_STEP_ID=0", "openmpi", 3, 4, "libmpi.so.40"},
		{"PMI_RANK=1 PMI_SIZE=2 PMI_FD=7 MPI_LOCALRANKID=1 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", "hydra", 1, 2, "libmpi.so.12"},
		{"PMI_RANK=1 PMI_SIZE=2 PMI_FD=7 MPI_LOCALRANKID=1 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_MPI_TYPE=pmi2", "hydra", 1, 2, "libmpi.so.12"},
		{"PMI_RANK=1 PMI_SIZE=2 PMI_FD=7 MPI_LOCALRANKID=0 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_MPI_TYPE=pmi2", "slurm-pmi2", 1, 2, "libmpi.so.12"}, // srun in a rank of Hydra's
		{"PMI_PORT=host:1 PMI_ID=1", "hydra", -1, 0, "libmpi.so.12"},
		{"PMI_RANK=5 PMI_SIZE=8 PMI_FD=13 SLURM_PROCID=5 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8", "slurm-pmi2", 5, 8, "libmpi.so.12"},
		{"PMIX_RANK=2 PMIX_NAMESPACE=slurm.pmix.1.0 SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3", "slurm-pmix", 2, 3, "libmpi.so.40"},
		{"PMIX_RANK=2 PMIX_NAMESPACE=prterun", "pmix", 2, 0, "libmpi.so.40"},
		{"PALS_RANKID=9 PALS_SIZE=16", "pals", 9, 16, "libmpi.so.12"},
		{"SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2", "slurm-none", 1, 2, "libmpi.so"},
		{"SLURM_PROCID=0 SLURM_JOB_ID=7", "none", -1, 0, "libmpi.so"}, // a batch script is no task
		{"OMPI_COMM_WORLD_SIZE=many OMPI_COMM_WORLD_RANK=-1", "openmpi", -1, 0, "libmpi.so.40"},
	} {
		env := map[string]string{}
		for _, kv := range strings.Fields(c.env) {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		l := FromEnv(func(k string) (string, bool) { v, ok := env[k]; return v, ok })
		if l.Name != c.name || l.Rank != c.rank || l.Size != c.size || l.sonames[0] != c.first || l.Why == "" {
			t.Errorf("%q: %+v, want %s rank %d of %d, %s first", c.env, l, c.name, c.rank, c.size, c.first)
		}
	}
}

// Environments captured from a rank of each launcher, in a Slurm job and outside.
func TestLauncherFromCapturedEnvironments(t *testing.T) {
	for name, want := range map[string]string{
		"hydra-slurm-4n2t.r1": "hydra", "hydra-local-4t.r1": "hydra", "hydra-local-pmiport-4t.rid1": "hydra",
		"mpirun-slurm-4n2t.r1": "openmpi", "mpirun-local-4t.r1": "openmpi",
		"pmi2-4n2t.t1": "slurm-pmi2", "pmix-4n2t.t1": "slurm-pmix", "block-4n2t.t1": "slurm-none", "batch.batch": "none",
	} {
		text, err := os.ReadFile("../../slurm/testdata/slurm-env/" + name + ".env")
		if err != nil {
			t.Fatal(err)
		}
		env := map[string]string{}
		for line := range strings.Lines(string(text)) {
			k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			env[k] = v
		}
		if l := FromEnv(func(k string) (string, bool) { v, ok := env[k]; return v, ok }); l.Name != want {
			t.Errorf("%s: %+v, want %s", name, l, want)
		}
	}
}

func TestProductAndVersion(t *testing.T) {
	for _, c := range []struct {
		text, name, version string
		mpich               bool
	}{
		{"Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022\x00", "openmpi", "4.1.4", false},
		{"MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7", "mpich", "4.0.2", true},
		{"Intel(R) MPI Library 2021.18 for Linux* OS\n", "intel", "2021.18", true},
		{"MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date : Wed March 02", "mvapich", "2.3.7", true},
		{"MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\n", "cray", "8.1.25.17", true},
		{"something new", "mpi-abi", "", false},
	} {
		name, version := product(c.text, Forum)
		if name != c.name || version != c.version || isMPICH(c.text) != c.mpich {
			t.Errorf("%q: %q %q, MPICH's family %v", c.text, name, version, isMPICH(c.text))
		}
	}
}

func TestReducible(t *testing.T) {
	for _, c := range []struct {
		t    Type
		o    Op
		want bool
	}{
		{Float64, Sum, true}, {Float64, Max, true}, {Float64, BitAnd, false},
		{Complex64, Prod, true}, {Complex64, Min, false}, {Complex128, BitOr, false},
		{Uint8, BitXor, true}, {Int64, Min, true}, {Byte, BitOr, true}, {Byte, Sum, false}, {Byte, Max, false},
		{types, Sum, false}, {Int8, ops, false},
	} {
		if got := Reducible(c.t, c.o); got != c.want {
			t.Errorf("Reducible(%v, %v) = %v", c.t, c.o, got)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	_, err := Open(Config{Path: "/nowhere/libmpi.so.99"})
	if !errors.Is(err, ErrNoLibrary) {
		t.Errorf("an absent library: %v", err)
	}
	if !clib.Available {
		if !errors.Is(err, clib.ErrBuiltWithout) {
			t.Errorf("without library support: %v", err)
		}
		return
	}
	if !strings.Contains(err.Error(), "/nowhere/libmpi.so.99") {
		t.Errorf("the error does not name the library: %v", err)
	}
	if _, err := Open(Config{Path: "libc.so.6"}); !errors.Is(err, ErrUnknownLibrary) || !strings.Contains(err.Error(), "libc.so.6") {
		t.Errorf("libc as an MPI library: %v", err)
	}
}

func TestUserEnvironmentIsKept(t *testing.T) {
	env := map[string]string{"UCX_HANDLE_ERRORS": "bt"}
	err := prepareEnvironment(
		func(k string) (string, bool) { v, ok := env[k]; return v, ok },
		func(k, v string) error { env[k] = v; return nil })
	if err != nil || env["UCX_HANDLE_ERRORS"] != "bt" {
		t.Errorf("%v, %v", env, err)
	}
	if v, ok := env["UCX_ERROR_SIGNALS"]; !ok || v != "" {
		t.Errorf("UCX may still take signals: %q", v)
	}
	if v := env["FI_MR_CACHE_MONITOR"]; v != "userfaultfd" && v != "disabled" {
		t.Errorf("libfabric trusts its hooks: %q", v)
	}
	refused := os.ErrPermission
	if err := prepareEnvironment(func(string) (string, bool) { return "", false }, func(string, string) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a refused variable: %v", err)
	}
}

func TestErrorNamesEverything(t *testing.T) {
	err := &Error{Op: "Irecv", Comm: "world", Rank: 1, Peer: 3, Tag: 7, Library: "openmpi 4.1.4", Code: 15, Detail: "MPI_ERR_TRUNCATE: message truncated", Err: ErrTruncated}
	const want = "native: Irecv on world rank 1 peer 3 tag 7 (openmpi 4.1.4): message truncated: MPI_ERR_TRUNCATE: message truncated"
	if err.Error() != want || !errors.Is(err, ErrTruncated) {
		t.Errorf("%q, want %q", err, want)
	}
}
