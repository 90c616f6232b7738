package procmem

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Copies within this process go the same way as those to others, of which package shm has tests.
func TestCopies(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 4097, 1 << 20} {
		src, dst := bytes.Repeat([]byte{7, 1, 3}, n)[:n], make([]byte, n)
		if err := Read(os.Getpid(), dst, AddressOf(src)); err != nil || !bytes.Equal(dst, src) {
			t.Errorf("read of %d bytes: %v", n, err)
		}
		clear(dst)
		if err := Write(os.Getpid(), src, AddressOf(dst)); err != nil || !bytes.Equal(dst, src) {
			t.Errorf("write of %d bytes: %v", n, err)
		}
	}
}

// An introduction is proved while its number stands where it says, in the process that it names.
func TestIntroduction(t *testing.T) {
	number := &make([]uint64, 1<<16)[0] // too much for a stack, which may move
	i := Introduce(number)
	if !i.Proved() {
		t.Error("this process is not proved to be itself")
	}
	elsewhere, nobody := i, i
	elsewhere.At = 8
	nobody.Process = 1 << 30
	if elsewhere.Proved() || nobody.Proved() {
		t.Error("no memory, or no process, is proved")
	}
	if atomic.AddUint64(number, 1); i.Proved() {
		t.Error("another number is proved")
	}
}

func TestPerByte(t *testing.T) {
	if kernel, own, err := PerByte(); err != nil || !(kernel > 0) || !(own > 0) {
		t.Errorf("%g ns by the kernel, %g ns by the process, %v", kernel, own, err)
	}
}

func TestErrors(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	if err := Read(cmd.Process.Pid, buf, AddressOf(buf)); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that has ended: %v", err)
	}
	if err := Read(os.Getpid(), buf, 1); !errors.Is(err, unix.EFAULT) {
		t.Errorf("an address where nothing is: %v", err)
	}
	mem, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err := unix.Mprotect(mem[os.Getpagesize():], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if err := Read(os.Getpid(), make([]byte, len(mem)), AddressOf(mem)); !errors.Is(err, unix.EFAULT) {
		t.Errorf("memory that ends half way: %v", err)
	}
}

func TestPopulate(t *testing.T) {
	pages := 4
	mem, err := unix.Mmap(-1, 0, pages*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if unix.Madvise(mem[:os.Getpagesize()], unix.MADV_POPULATE_WRITE) != nil {
		t.Skip("MADV_POPULATE_WRITE is not to be had here: before Linux 5.14")
	}
	Populate(mem)
	there := make([]byte, pages)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, AddressOf(mem), uintptr(len(mem)), uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for i, p := range there {
		if p&1 == 0 {
			t.Errorf("page %d is not there", i)
		}
	}
}
