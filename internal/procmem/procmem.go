// Package procmem is what the kernel does with the memory of processes. It copies between this process and another, once,
// where a segment that both have mapped would take two copies; and it maps pages ahead of their use. Copying needs the right
// to trace the other process, which processes of one user have unless the system forbids it.
//
// process_vm_readv(2); Ma, Bosilca, Bouteiller, Dongarra, "Kernel-assisted and topology-aware MPI
// collective communications on multicore/many-core platforms", 2013.
package procmem

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read fills dst from an address of process pid. Go's scheduler is not told of the call: callers keep dst so short, 1 MiB at
// most, that it can do without the processor meanwhile. An error wraps the system's; unix.ESRCH says that the process has
// ended.
func Read(pid int, dst []byte, src uintptr) error {
	return move(unix.SYS_PROCESS_VM_READV, "process_vm_readv", pid, dst, src)
}

// ReadLong is Read of any length, in pieces that take the kernel some 50 µs each.
func ReadLong(pid int, dst []byte, src uintptr) error {
	const pieceBytes = 512 << 10
	for len(dst) > 0 {
		n := min(len(dst), pieceBytes)
		if err := Read(pid, dst[:n], src); err != nil {
			return err
		}
		dst, src = dst[n:], src+uintptr(n)
	}
	return nil
}

// Introduction is what a process tells others, so that they find out whether they can read its memory. In another namespace
// its id may be another process's, but only the right process has Number at At.
type Introduction struct{ Process, At, Number uint64 }

// Introduce draws the number and writes it to at, which must lie off any stack, and keep the number while others look.
func Introduce(at *uint64) Introduction {
	number := rand.Uint64()
	atomic.StoreUint64(at, number) // which the compiler cannot take for needless
	return Introduction{uint64(os.Getpid()), uint64(uintptr(unsafe.Pointer(at))), number}
}

// Proved reports whether this process can read the memory of the one that introduces itself so.
func (i Introduction) Proved() bool {
	seen := make([]byte, 8)
	return Read(int(i.Process), seen, uintptr(i.At)) == nil && binary.NativeEndian.Uint64(seen) == i.Number
}

// Write copies src to an address of process pid, as Read does.
func Write(pid int, src []byte, dst uintptr) error {
	return move(unix.SYS_PROCESS_VM_WRITEV, "process_vm_writev", pid, src, dst)
}

func move(call uintptr, name string, pid int, here []byte, there uintptr) error {
	local := unix.Iovec{}
	remote := unix.RemoteIovec{Base: there}
	for buf := here; len(buf) > 0; {
		local.Base = &buf[0]
		local.SetLen(len(buf))
		remote.Len = len(buf)
		n, _, errno := unix.RawSyscall6(call, uintptr(pid),
			uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
		switch {
		case errno == unix.EINTR || errno == unix.EAGAIN:
		case errno != 0:
			return fmt.Errorf("%s of %d bytes at process %d: %w", name, len(here), pid, errno)
		case n == 0:
			return fmt.Errorf("%s at process %d: nothing was copied", name, pid)
		default:
			buf = buf[n:]
			remote.Base += n
		}
	}
	return nil
}

// PerByte measures how many nanoseconds a copy of a byte takes by the kernel, and by this process itself, in about a fifth of
// a millisecond. The two are timed by turns, so that other work of the processor, and changes of its speed, affect both
// alike. own is known even where the kernel copies nothing, as err then says.
func PerByte() (kernel, own float64, err error) {
	const (
		sampleBytes = 64 << 10
		samples     = 16
	)
	src, dst := make([]byte, sampleBytes), make([]byte, sampleBytes)
	byKernel, byCopy := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range samples {
		begun := time.Now()
		if err == nil {
			err = Read(os.Getpid(), dst, AddressOf(src))
		}
		between := time.Now()
		copy(dst, src)
		byKernel, byCopy = min(byKernel, between.Sub(begun)), min(byCopy, time.Since(between))
	}
	return float64(byKernel.Nanoseconds()) / sampleBytes, float64(byCopy.Nanoseconds()) / sampleBytes, err
}

// Populate maps the pages of shared memory that exist already, all at once: else each costs a fault when it is first touched,
// which takes longer than copying it. On kernels before 5.14 it does nothing.
func Populate(mem []byte) { _ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE) }

// AddressOf is where a buffer lies, for another process to read or write. It says nothing of
// how long: the buffer must be kept alive, and off any stack.
func AddressOf(buf []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(buf))) }
