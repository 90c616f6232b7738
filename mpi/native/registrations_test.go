package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

const counterVariable = "FISTERRA_NATIVE_TEST_COUNTER"

// A registration cache must hear that a buffer may be unmapped, since the Go runtime
// does not tell; but not of memory that is never given back. MPICH here is built on
// UCX, whose events are counted by a handler of ours.
func TestCachedRegistrationsAreDropped(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		env := []string{}
		if l.Part == "openmpi" {
			env = append(env, lab.ThroughUCX()...)
		}
		counter := compile(t, "testdata/ucmcount.c")
		l.ranks(t, 2, "registrations", append(env, counterVariable+"="+counter)...)
	})
}

// compile makes a shared library of a C file.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	cc := need.Program(t, "cc", "cc")
	object := filepath.Join(t.TempDir(), filepath.Base(source)+".so")
	args := append([]string{"-shared", "-fPIC", "-O1", "-Wall", "-o", object, source}, flags...)
	if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("cc %v: %v\n%s", args, err, out)
	}
	return object
}

func registrations(ctx context.Context, w *World) error {
	counter, err := clib.Open(os.Getenv(counterVariable))
	if err != nil {
		return err
	}
	if rc := int32(clib.Call(counter.Sym("count_install"))); rc != 0 {
		return fmt.Errorf("UCX refused the handler: %d", rc)
	}
	w.openRegistrations(ForgetAlways)
	if !w.forgets {
		return errors.New("ucm_vm_munmap was not found although UCX is loaded")
	}
	events := func(b []byte) int {
		return int(int32(clib.Call(counter.Sym("count_covering"), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))))
	}
	exchange := func(b []byte) error {
		if w.comm.rank == 0 {
			return w.comm.Send(ctx, b, 1, 1)
		}
		_, err := w.comm.Recv(ctx, b, 0, 1)
		return err
	}
	passing, small, kept := make([]byte, 1<<20), make([]byte, forgetBytes-1), make([]byte, 1<<20)
	w.Keep(kept)
	for _, b := range [][]byte{passing, small, kept, kept[1000:500000]} {
		// The C library may have given the same addresses back before.
		want := events(b)
		if &b[0] == &passing[0] {
			want++
		}
		if err := exchange(b); err != nil {
			return err
		}
		if n := events(b); n != want {
			return fmt.Errorf("%d events after a transfer of %d B, want %d", n, len(b), want)
		}
	}
	w.openRegistrations(ForgetNever)
	want := events(kept) + 1
	if w.Release(kept); events(kept) != want {
		return fmt.Errorf("%d events after kept memory was released, want %d", events(kept), want)
	}
	w.openRegistrations(ForgetAlways)
	want = events(kept) + 1
	if err := exchange(kept); err != nil {
		return err
	}
	if n := events(kept); n != want {
		return fmt.Errorf("%d events after a transfer of what is no longer kept, want %d", n, want)
	}
	var r Request
	want = events(passing[:1<<19]) + 1
	if err := w.comm.Iallreduce(&r, nil, passing[:1<<19], Float32, Sum); err != nil {
		return err
	}
	if _, err := w.Wait(ctx, &r); err != nil {
		return err
	}
	if n := events(passing[:1<<19]); n != want {
		return fmt.Errorf("%d events after a collective, want %d", n, want)
	}
	return nil
}

func TestRDMADevicesAreSeen(t *testing.T) {
	dir := t.TempDir()
	if hasRDMA(filepath.Join(dir, "absent")) || hasRDMA(dir) {
		t.Error("an RDMA device where there is none")
	}
	if err := os.Mkdir(filepath.Join(dir, "mlx5_0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !hasRDMA(dir) {
		t.Error("mlx5_0 not seen")
	}
}
