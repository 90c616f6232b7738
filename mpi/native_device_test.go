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
	w, err := openNative(context.Background(), cfg, &origin{kind: ByFisterra, size: 2}, nil, rdmaCheck{})
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
