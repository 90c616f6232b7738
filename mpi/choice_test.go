package mpi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/fisterra-hpc/fisterra/slurm"
)

func TestChooseByWhatTheHostHas(t *testing.T) {
	noDevice, noLibrary := errors.New("no device"), fmt.Errorf("native: %w (slurm); tried:\n\tlibmpi.so.40", native.ErrNoLibrary)
	for _, c := range []struct {
		name            string
		cfg             Config
		launcher        string
		local           int // ranks on this host, of 2; 0: not told
		device, library error
		want, why, err  string
		warns           bool
	}{
		{name: "both", launcher: ByOpenMPI, want: "mpi", why: "drives it"},
		{name: "no library", launcher: ByPMI2, library: noLibrary, want: "auto", why: "not the MPI library that would drive it: native: ", warns: true},
		{name: "a library that is named", cfg: Config{MPILibrary: "/opt/libmpi.so"}, launcher: ByPMI2, library: noLibrary, err: "no MPI library"},
		{name: "no device", launcher: ByPMIx, device: noDevice, want: "auto", why: "no usable RDMA device"},
		{name: "a launcher that MPI does not know", launcher: BySlurm, want: "auto", why: "else TCP: an RDMA device is usable, but this launcher starts no", warns: true},
		{name: "a launcher that MPI does not know, no device", launcher: BySlurm, device: noDevice, want: "auto", why: "else TCP: no usable RDMA device"},
		{name: "a launcher that MPI does not know, one host", launcher: BySlurm, local: 2, want: "auto", why: "shared memory on one host, else TCP"},
		{name: "off", cfg: Config{InfiniBand: "off"}, launcher: ByOpenMPI, want: "auto", why: "InfiniBand is off"},
		{name: "on", cfg: Config{InfiniBand: "on"}, launcher: ByOpenMPI, library: noLibrary, want: "mpi", why: "InfiniBand is on"},
		{name: "on without a device", cfg: Config{InfiniBand: "on"}, launcher: ByOpenMPI, device: noDevice, err: "no device"},
		{name: "on with tcp", cfg: Config{InfiniBand: "on", Transport: "tcp"}, launcher: ByOpenMPI, err: "cannot do RDMA"},
		{name: "on with mpi", cfg: Config{InfiniBand: "on", Transport: "mpi"}, launcher: ByMPICH, want: "mpi", why: "asked for"},
		{name: "on with mpi without a device", cfg: Config{InfiniBand: "on", Transport: "mpi"}, launcher: ByMPICH, device: noDevice, err: "no device is usable: no device"},
		{name: "off with mpi", cfg: Config{InfiniBand: "off", Transport: "mpi"}, launcher: ByMPICH, err: "InfiniBand is off, but transport mpi"},
		{name: "off with mpi over hosts", cfg: Config{InfiniBand: "off", Transport: "mpi"}, launcher: ByPMI2, local: 1, err: "InfiniBand is off, but transport mpi"},
		{name: "off with mpi on one host", cfg: Config{InfiniBand: "off", Transport: "mpi"}, launcher: ByPMI2, local: 2, want: "mpi", why: "asked for"},
		{name: "off with mpi without a device", cfg: Config{InfiniBand: "off", Transport: "mpi"}, launcher: ByMPICH, device: noDevice, want: "mpi", why: "asked for"},
		{name: "off with tcp", cfg: Config{InfiniBand: "off", Transport: "tcp"}, launcher: ByMPICH, want: "tcp", why: "asked for"},
		{name: "a run that outlives ranks", cfg: Config{OutlivesRanks: true}, launcher: ByPMI2, want: "auto", why: "one lost rank ends the job", warns: true},
		{name: "that without a device", cfg: Config{OutlivesRanks: true}, launcher: ByPMI2, device: noDevice, want: "auto", why: "no usable RDMA device"},
		{name: "that with on", cfg: Config{OutlivesRanks: true, InfiniBand: "on"}, launcher: ByPMI2, want: "mpi", why: "one lost rank ends the job", warns: true},
		{name: "that with mpi", cfg: Config{OutlivesRanks: true, Transport: "mpi"}, launcher: ByPMI2, want: "mpi", why: "asked for; one lost rank", warns: true},
		{name: "that with tcp", cfg: Config{OutlivesRanks: true, Transport: "tcp"}, launcher: ByPMI2, want: "tcp", why: "asked for"},
		{name: "asked for", cfg: Config{Transport: "tcp"}, launcher: ByOpenMPI, want: "tcp", why: "asked for"},
		{name: "unknown InfiniBand", cfg: Config{InfiniBand: "maybe"}, launcher: ByOpenMPI, err: `InfiniBand "maybe" is none`},
		{name: "unknown InfiniBand with tcp", cfg: Config{Transport: "tcp", InfiniBand: "maybe"}, launcher: ByOpenMPI, err: `InfiniBand "maybe" is none`},
		{name: "unknown InfiniBand with mpi", cfg: Config{Transport: "mpi", InfiniBand: "maybe"}, launcher: ByOpenMPI, err: `InfiniBand "maybe" is none`},
		{name: "unknown", cfg: Config{Transport: "pigeon"}, launcher: ByOpenMPI, err: `"pigeon" is none`},
	} {
		l, survey := &origin{kind: c.launcher, size: 2, localSize: c.local}, func() error { return c.device }
		got, err := choose(&c.cfg, l, survey, func() (choice, error) {
			return decide(&c.cfg, []finding{surveyHost(l, survey, func() (*native.Library, error) { return &native.Library{Name: "mpich"}, c.library })})
		})
		switch {
		case c.err != "" && (!errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		case c.err == "" && (err != nil || got.transport != c.want || !strings.Contains(got.reason, c.why) || strings.Contains(got.reason, "\n")):
			t.Errorf("%s: %+v, %v, want %s because of %q", c.name, got, err, c.want, c.why)
		case got.warns != c.warns:
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// Ranks that found different things on their hosts cannot meet, and each says what it chose.
func TestStartThatFailsNamesTheChoice(t *testing.T) {
	failed := fmt.Errorf("mpi: %w", ErrStartTimeout)
	own := choice{transport: "auto", reason: "no usable RDMA device", byHost: true}
	if err := own.explain(failed); !errors.Is(err, ErrStartTimeout) || !strings.Contains(err.Error(), "chose transport auto (no usable RDMA device)") {
		t.Error(err)
	}
	if err := (choice{transport: "mpi"}).demands().explain(failed); !errors.Is(err, ErrStartTimeout) || !strings.Contains(err.Error(), "one whose host has none has ended") {
		t.Error(err)
	}
	if err := (choice{transport: "tcp", reason: "asked for"}).explain(failed); err != failed {
		t.Error(err)
	}
	for _, other := range []error{nil, ErrLayout, fmt.Errorf("mpi: %w: %w", ErrLauncher, native.ErrLauncher)} {
		if err := own.explain(other); err != other {
			t.Error(err)
		}
	}
}

// All ranks use the MPI library, or none does.
func TestDecideByWhatAllHave(t *testing.T) {
	able := func(rank int, library string) finding {
		return finding{Rank: rank, Host: fmt.Sprint("n", rank), Library: library}
	}
	without := finding{Rank: 3, Host: "n3", Device: "ib: no usable InfiniBand device"}
	missing := finding{Rank: 2, Host: "n2", Missing: "native: no MPI library"}
	named := Config{MPILibrary: "libmpi.so.12"}
	for _, c := range []struct {
		name       string
		cfg        Config
		found      []finding
		want, why  string
		warns, err bool
	}{
		{name: "all", found: []finding{able(1, "mpich 4.0.2"), able(0, "mpich 4.0.2")}, want: "mpi", why: "drives it"},
		{name: "no device", found: []finding{without, {Rank: 0, Device: "none"}}, want: "auto", why: own + ": no usable RDMA device"},
		{name: "one without a device", found: []finding{without, able(0, "mpich"), able(1, "mpich")}, want: "auto", why: "not all ranks can use RDMA: rank 3 on n3 has no usable RDMA device", warns: true},
		{name: "one without a library", found: []finding{missing, able(0, "mpich")}, want: "auto", why: "rank 2 on n2 has an RDMA device, but not the MPI library that would drive it: native", warns: true},
		{name: "two lack something", found: []finding{without, able(0, "mpich"), missing}, want: "auto", why: "rank 2 on n2 has an RDMA device, but not the MPI library that would drive it: native: no MPI library; 1 more", warns: true},
		{name: "no library", found: []finding{missing, {Rank: 4, Missing: "native"}}, want: "auto", why: "there is an RDMA device, but not the MPI library", warns: true},
		{name: "different libraries", found: []finding{able(0, "mpich 4.0.2"), able(1, "openmpi 4.1.4")}, want: "auto", why: "rank 0 on n0 has mpich 4.0.2, rank 1 on n1 has openmpi 4.1.4", warns: true},
		{name: "named", cfg: named, found: []finding{able(0, "mpich"), able(1, "mpich")}, want: "mpi"},
		{name: "named and missing", cfg: named, found: []finding{able(0, "mpich"), missing}, err: true},
	} {
		got, err := decide(&c.cfg, c.found)
		switch {
		case c.err != errors.Is(err, ErrTransport) || c.err && !strings.Contains(err.Error(), "rank 2 on n2: native: no MPI library"):
			t.Errorf("%s: %v", c.name, err)
		case got.transport != c.want || !strings.Contains(got.reason, c.why) || got.warns != c.warns:
			t.Errorf("%s: %+v, want %s because of %q", c.name, got, c.want, c.why)
		}
	}
}

// A rank that cannot meet the others of its step to agree says why: at once where it was told how they recognise
// each other, else with what becomes of its own choice.
func TestRankThatCannotAgreeSaysWhy(t *testing.T) {
	if _, err := os.Stat(mungeDefaultPath); err == nil {
		t.Skip("this machine has a munge daemon")
	}
	none := func(string) (string, bool) { return "", false }
	l := &origin{kind: ByPMI2, rank: 1, size: 2, job: "7.0", step: &slurm.Job{}}
	absent := filepath.Join(t.TempDir(), "absent")
	if c, _, err := chooseTogether(t.Context(), &Config{Lookup: none, SecretDir: absent}, l, finding{Device: "none"}); !errors.Is(err, ErrLauncher) || !strings.Contains(err.Error(), absent) {
		t.Errorf("a secret directory that this host does not have: %+v, %v, want ErrLauncher", c, err)
	}
	c, _, err := chooseTogether(t.Context(), &Config{Lookup: none}, l, finding{Device: "none"})
	if err != nil || c.transport != "auto" {
		t.Fatalf("without munge: %+v, %v, want the rank's own choice", c, err)
	}
	if err := c.explain(fmt.Errorf("mpi: %w", ErrStartTimeout)); !strings.Contains(err.Error(), "could not agree first: ") || !strings.Contains(err.Error(), "munge does not answer") {
		t.Errorf("without munge: %v", err)
	}
}
