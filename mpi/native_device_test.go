package mpi

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

func TestNativeTags(t *testing.T) {
	const mpich = 1<<28 - 1
	for _, k := range []struct{ bound, tag, out int }{
		{mpich, AnyTag, AnyTag},
		{mpich, 0, 0},
		{mpich, mpich - 16, mpich - 16},
		{mpich, mpich - 15, MaxTag + 1}, // the library's own topmost are for ours
		{mpich, mpich, MaxTag + 1},
		{mpich, MaxTag - 16, MaxTag + 1},
		{mpich, MaxTag - 15, mpich - 15},
		{mpich, MaxTag, mpich},
		{1<<31 - 1, MaxTag, MaxTag},
		{MaxTag, MaxTag, MaxTag},
		{MaxTag - 1, MaxTag, MaxTag - 1},
		{MaxTag - 1, MaxTag - 17, MaxTag - 17},
		{32767, 32751, 32751},
		{32767, 32752, MaxTag + 1},
		{32767, MaxTag, 32767},
	} {
		tags := newNativeTags(k.bound)
		if out := tags.out(k.tag); out != k.out {
			t.Errorf("of a library with tags to %d, tag %d is %d, want %d", k.bound, k.tag, out, k.out)
		} else if out <= k.bound && tags.in(out) != k.tag {
			t.Errorf("of a library with tags to %d, tag %d comes back as %d", k.bound, k.tag, tags.in(out))
		}
	}
}

func TestOpenMPISettingsGiveWayToTheUsers(t *testing.T) {
	settle := func(user map[string]string) map[string]string {
		set := map[string]string{}
		err := settleOpenMPI(
			func(name string) (string, bool) { v, ok := user[name]; return v, ok },
			func(name, value string) error { set[name] = value; return nil })
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	const flags, limit = "OMPI_MCA_btl_vader_flags", "OMPI_MCA_btl_vader_max_send_size"
	if set := settle(nil); set[flags] != "send,inplace" || set[limit] == "" || set["OMPI_MCA_btl_tcp_flags"] != "send,inplace" {
		t.Errorf("by default: %v", set)
	}
	set := settle(map[string]string{limit: "32768"})
	if _, ours := set[limit]; ours || set[flags] == "" {
		t.Errorf("with the user's fragments: %v", set)
	}
	set = settle(map[string]string{flags: "send,get"})
	for name := range set {
		if strings.Contains(name, "vader") {
			t.Errorf("with the user's flags %s is set too", name)
		}
	}
	refused := errors.New("refused")
	err := settleOpenMPI(func(string) (string, bool) { return "", false }, func(string, string) error { return refused })
	if !errors.Is(err, refused) || !strings.Contains(err.Error(), flags) {
		t.Errorf("environment that cannot be set: %v", err)
	}
}

func TestRegistrationRule(t *testing.T) {
	for value, want := range map[string]native.Registrations{
		"": native.ForgetOnRDMA, "auto": native.ForgetOnRDMA, "always": native.ForgetAlways, "never": native.ForgetNever,
	} {
		if got, err := registrationRule(func(string) (string, bool) { return value, true }); got != want || err != nil {
			t.Errorf("%q is %v, %v, want %v", value, got, err, want)
		}
	}
	_, err := registrationRule(func(string) (string, bool) { return "off", true })
	if err == nil || !strings.Contains(err.Error(), `FISTERRA_MPI_REGISTRATIONS="off" in the environment: want auto, always or never`) {
		t.Errorf("an unknown rule: %v", err)
	}
}

func TestOwnLauncherStartsNoMPILibrary(t *testing.T) {
	cfg := &Config{Lookup: func(string) (string, bool) { return "", false }}
	w, err := openNative(context.Background(), cfg, &launch{kind: byFisterra, size: 2})
	if w != nil || !errors.Is(err, ErrLauncher) {
		t.Errorf("%v, want ErrLauncher", err)
	}
}

func TestKindOf(t *testing.T) {
	type celsius float32
	for _, k := range []struct {
		name      string
		got, want ElemKind
	}{
		{"celsius", KindOf[celsius](), native.Float32},
		{"float64", KindOf[float64](), native.Float64},
		{"int", KindOf[int](), native.Int64},
		{"int8", KindOf[int8](), native.Int8},
		{"uint16", KindOf[uint16](), native.Uint16},
		{"uint", KindOf[uint](), native.Uint64},
		{"complex64", KindOf[complex64](), native.Complex64},
		{"complex128", KindOf[complex128](), native.Complex128},
	} {
		if k.got != k.want {
			t.Errorf("%s is %v, want %v", k.name, k.got, k.want)
		}
	}
}
