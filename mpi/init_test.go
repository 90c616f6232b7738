package mpi

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

func TestChooseByWhatTheHostHas(t *testing.T) {
	noDevice, noLibrary := errors.New("no device"), fmt.Errorf("native: %w (slurm); tried:\n\tlibmpi.so.40", native.ErrNoLibrary)
	for _, c := range []struct {
		name            string
		cfg             Config
		launcher        string
		device, library error
		want, why, err  string
	}{
		{name: "both", launcher: byOpenMPI, want: "mpi", why: "drives it"},
		{name: "no library", launcher: byPMI2, library: noLibrary, want: "auto", why: "not the MPI library that would drive it: native: "},
		{name: "a library that is named", cfg: Config{MPILibrary: "/opt/libmpi.so"}, launcher: byPMI2, library: noLibrary, want: "mpi"},
		{name: "no device", launcher: byPMIx, device: noDevice, want: "auto", why: "no usable RDMA device"},
		{name: "a launcher that MPI does not know", launcher: bySlurm, want: "auto"},
		{name: "off", cfg: Config{InfiniBand: "off"}, launcher: byOpenMPI, want: "auto", why: "InfiniBand is off"},
		{name: "on", cfg: Config{InfiniBand: "on"}, launcher: byOpenMPI, library: noLibrary, want: "mpi", why: "InfiniBand is on"},
		{name: "on without a device", cfg: Config{InfiniBand: "on"}, launcher: byOpenMPI, device: noDevice, err: "no device"},
		{name: "on with tcp", cfg: Config{InfiniBand: "on", Transport: "tcp"}, launcher: byOpenMPI, err: "cannot do RDMA"},
		{name: "asked for", cfg: Config{Transport: "tcp"}, launcher: byOpenMPI, want: "tcp", why: "asked for"},
		{name: "unknown", cfg: Config{Transport: "pigeon"}, launcher: byOpenMPI, err: `"pigeon" is none`},
	} {
		got, err := choose(&c.cfg, &launch{kind: c.launcher, size: 2}, func() error { return c.device },
			func() (*native.Library, error) { return nil, c.library })
		switch {
		case c.err != "" && (!errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		case c.err == "" && (err != nil || got.transport != c.want || !strings.Contains(got.reason, c.why) || strings.Contains(got.reason, "\n")):
			t.Errorf("%s: %+v, %v, want %s because of %q", c.name, got, err, c.want, c.why)
		case got.lacks != (c.name == "no library"):
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
	if err := (choice{transport: "tcp", reason: "asked for"}).explain(failed); err != failed {
		t.Error(err)
	}
	for _, other := range []error{nil, ErrLayout} {
		if err := own.explain(other); err != other {
			t.Error(err)
		}
	}
}
