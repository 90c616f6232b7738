package shm

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func addressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// pageMapped reports whether a page of this process is mapped.
func pageMapped(at uintptr) bool {
	var resident [1]byte
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, at, uintptr(unix.Getpagesize()), uintptr(unsafe.Pointer(&resident[0])))
	return !errors.Is(errno, unix.ENOMEM)
}

// addressSpace is how many bytes of addresses this process uses.
func addressSpace(t *testing.T) (bytes int) {
	t.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(statm), &bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bytes * unix.Getpagesize()
}

// A segment is mapped whole, twice for the same memory, from where a huge page may begin if it has room for one, and
// nothing stays of what that took.
func TestMap(t *testing.T) {
	page := unix.Getpagesize()
	for _, size := range []int{page, HugePageBytes - page, HugePageBytes, HugePageBytes + page, 2*HugePageBytes + 5*page} {
		fd, err := CreateSegment("fisterra-test", size, size, OrdinaryPages)
		if err != nil {
			t.Fatal(err)
		}
		var maps [2][]byte
		for i := range maps {
			if maps[i], err = mapSegment(fd, size); err != nil {
				t.Fatal(err)
			}
			if at := addressOf(maps[i]); len(maps[i]) != size || size >= HugePageBytes && at%HugePageBytes != 0 {
				t.Errorf("%d bytes, want %d, at %#x", len(maps[i]), size, at)
			}
		}
		maps[0][0], maps[0][size-1] = 1, 2
		if maps[1][0] != 1 || maps[1][size-1] != 2 {
			t.Errorf("%d bytes: two mappings are not of the same memory", size)
		}
		for _, mem := range maps {
			at := addressOf(mem)
			if err := Unmap(mem); err != nil {
				t.Error(err)
			}
			for _, p := range []uintptr{at, at + uintptr(size-page)} {
				if pageMapped(p) {
					t.Errorf("%d bytes: the page at %#x is mapped still", size, p)
				}
			}
		}
		if _, err := Map(-1, size); !errors.Is(err, unix.EBADF) {
			t.Errorf("no segment of %d bytes: %v", size, err)
		}
		unix.Close(fd)
	}
}

// TestMapLeavesNothing: mapping again and again does not use up addresses.
func TestMapLeavesNothing(t *testing.T) {
	const size = HugePageBytes + 4096
	fd, err := CreateSegment("fisterra-test", size, size, OrdinaryPages)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	before := addressSpace(t)
	for range 100 {
		mem, err := Map(fd, size)
		if err != nil {
			t.Fatal(err)
		}
		if err := Unmap(mem); err != nil {
			t.Fatal(err)
		}
	}
	if grown := addressSpace(t) - before; grown > 50*HugePageBytes {
		t.Errorf("%d bytes of addresses are gone after 100 mappings", grown)
	}
}
