package mpitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

const counterVariable = "FISTERRA_TEST_MPI_COUNTER"

// What Alloc returned is registered once with a network's cards and stays so until
// Free; what lies on the Go heap is not trusted to stay where it was. UCX, which both
// libraries can use, tells by its events.
func TestMPIAllocIsKeptRegistered(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		cc := need.Program(t, "cc", "cc")
		root, err := lab.Root()
		if err != nil {
			t.Fatal(err)
		}
		counter := filepath.Join(t.TempDir(), "ucmcount.so")
		source := filepath.Join(root, "mpi/native/testdata/ucmcount.c")
		if r := lab.Command(t.Context(), t, cc, "-shared", "-fPIC", "-O1", "-o", counter, source).Run(); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
		env := []string{counterVariable + "=" + counter, "FISTERRA_MPI_REGISTRATIONS=always"}
		if l.Part == "openmpi" {
			env = append(env, lab.ThroughUCX()...)
		}
		l.ranks(t, 2, "memory", env...)
	})
}

func registeredMemory(ctx context.Context, w *mpi.World) error {
	counter, err := clib.Open(os.Getenv(counterVariable))
	if err != nil {
		return err
	}
	if rc := int32(clib.Call(counter.Sym("count_install"))); rc != 0 {
		return fmt.Errorf("UCX refused the handler: %d", rc)
	}
	c := w.Comm()
	peer := 1 - c.Rank()
	const n = 1 << 20
	heap := make([]byte, n)
	kept, err := mpi.Alloc[byte](c, n)
	if err != nil {
		return err
	}
	events := func(address uintptr) int {
		return int(int32(clib.Call(counter.Sym("count_covering"), address, n)))
	}
	at := uintptr(unsafe.Pointer(&kept[0])) // known after it is freed, too
	check := func(what string, address uintptr, want int, do func() error) error {
		before := events(address)
		if err := do(); err != nil {
			return err
		}
		if got := events(address) - before; got != want {
			return fmt.Errorf("%d events of %s, want %d", got, what, want)
		}
		return nil
	}
	transfer := func(buf []byte) func() error {
		return func() error {
			if c.Rank() == 0 {
				return mpi.Send(ctx, c, buf, peer, 1)
			}
			return recvOnly(ctx, c, buf, peer, 1)
		}
	}
	sum := func() error {
		own, _ := c.Native()
		return wait(ctx, own.Allreduce(nil, kept, mpi.KindOf[float32](), mpi.ReduceSum))
	}
	return errors.Join(
		check("a transfer on the Go heap", uintptr(unsafe.Pointer(&heap[0])), 1, transfer(heap)),
		check("a transfer in memory from Alloc", at, 0, transfer(kept)),
		check("a collective in memory from Alloc", at, 0, sum),
		check("freeing it", at, 1, func() error { return mpi.Free(c, kept) }),
	)
}
