package native

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

func TestLauncherImpliesLibraries(t *testing.T) {
	for _, c := range []struct {
		kind    LauncherKind
		first   string // the first library tried
		implied bool
	}{
		{NoLauncher, "libmpi.so", false},
		{BySlurm, "libmpi.so", false},
		{ByOpenMPI, "libmpi.so.40", true},
		{ByHydra, "libmpi.so.12", true},
		{ByPALS, "libmpi.so.12", true},
		{BySlurmByPMI2, "libmpi.so.12", true},
		{BySlurmByPMIx, "libmpi.so.40", true},
		{ByPMIx, "libmpi.so.40", true},
	} {
		names, implied := Launcher{Kind: c.kind}.sonames()
		if names[0] != c.first || implied != c.implied {
			t.Errorf("%q: %v, implied %v, want %s first, implied %v", c.kind, names, implied, c.first, c.implied)
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

// Open MPI moves its messages alike behind both of its binary interfaces.
func TestOpenMPIAnnounces(t *testing.T) {
	for _, k := range []struct {
		text   string
		family Family
		want   bool
	}{
		{"Open MPI v4.1.4, package: Debian", OpenMPI, true},
		{"Something built on it", OpenMPI, true},
		{"Open MPI v6.0.0, package: site", Forum, true},
		{"MPICH Version:\t5.0.0", Forum, false},
		{"MPICH Version:\t4.0.2", MPICH, false},
	} {
		l := &Library{Family: k.family}
		l.Name, l.Version = product(k.text, k.family)
		if got := (&World{lib: l}).announcing(); got != k.want {
			t.Errorf("%s by %v: %v, want %v", k.text, k.family, got, k.want)
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
