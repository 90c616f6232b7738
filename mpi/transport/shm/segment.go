package shm

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A segment is a sealed memfd: its size can never change, so a mapping of it is
// good for as long as it lasts, whatever the other side does. Only the part in
// use is backed by memory, and that is asked for with fallocate: a page that
// cannot be had is an error there, whereas touching it would be a fatal SIGBUS.

const segmentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Pages are what a segment consists of.
type Pages int

const (
	OrdinaryPages Pages = iota
	HugePages           // of which the system has a pool
)

// CreateSegment makes a segment of sizeBytes, whole pages, of which the first backedBytes have memory. The descriptor is the
// caller's to close.
func CreateSegment(name string, sizeBytes, backedBytes int, pages Pages) (fd int, err error) {
	flags, reserve := unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING, back
	if pages == HugePages {
		flags, reserve = flags|unix.MFD_HUGETLB, allocate
	}
	fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create %s: %w", name, err)
	}
	if err := unix.Ftruncate(fd, int64(sizeBytes)); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("a shared segment of %d bytes: %w", sizeBytes, err)
	}
	if err := reserve(fd, 0, backedBytes); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, segmentSeals); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("sealing %s: %w", name, err)
	}
	return fd, nil
}

// back gets memory for n bytes of a segment from offset on.
func back(fd, offset, n int) error {
	if err := afford(n); err != nil {
		return err
	}
	return allocate(fd, offset, n)
}

// allocateStepBytes is how much is allocated in one call. Older kernels give back all that a call has got when
// a signal comes, and a profiler's comes every 10 ms.
const allocateStepBytes = 2 * HugePageBytes

func allocate(fd, offset, n int) error {
	for done := 0; done < n; {
		step := min(n-done, allocateStepBytes)
		err := unix.Fallocate(fd, 0, int64(offset+done), int64(step))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("no memory for %d bytes shared with a rank of this host (check the job's memory limit and ulimit -f): %w", n, err)
		}
		done += step
	}
	return nil
}

// mapSegment maps a segment, whoever made it, after making sure that its size
// is sizeBytes and stays so.
func mapSegment(fd, sizeBytes int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("reading the seals of a shared segment: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("the peer's shared segment is not sealed against shrinking")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("size of a shared segment: %w", err)
	}
	if st.Size != int64(sizeBytes) {
		return nil, fmt.Errorf("the peer's shared segment has %d bytes, expected %d", st.Size, sizeBytes)
	}
	return Map(fd, sizeBytes)
}

// HugePageBytes is the size of a huge page.
const HugePageBytes = 2 << 20

// Map maps the first sizeBytes of a segment; Unmap ends that. If they have room for a huge page, they begin at an address
// where one may.
func Map(fd, sizeBytes int) ([]byte, error) {
	size := uintptr(sizeBytes)
	place := func(at unsafe.Pointer, flags int) (unsafe.Pointer, error) {
		return unix.MmapPtr(fd, 0, at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|flags)
	}
	var mem unsafe.Pointer
	var err error
	if sizeBytes < HugePageBytes {
		mem, err = place(nil, 0)
	} else {
		mem, err = placeAligned(place, size)
	}
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of shared memory: %w", sizeBytes, err)
	}
	return unsafe.Slice((*byte)(mem), sizeBytes), nil
}

// placeAligned has size bytes placed, whole pages, where a huge page may begin.
func placeAligned(place func(at unsafe.Pointer, flags int) (unsafe.Pointer, error), size uintptr) (unsafe.Pointer, error) {
	around := size + HugePageBytes
	free, err := unix.MmapPtr(-1, 0, nil, around, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := -uintptr(free) % HugePageBytes
	mem, err := place(unsafe.Add(free, before), unix.MAP_FIXED)
	if err != nil {
		return nil, errors.Join(err, unix.MunmapPtr(free, around))
	}
	if before > 0 {
		_ = unix.MunmapPtr(free, before) // else it stays, an address range without memory
	}
	_ = unix.MunmapPtr(unsafe.Add(mem, size), around-before-size)
	return mem, nil
}

// Unmap is the opposite. Nobody may touch the memory any more.
func Unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

// at views the object of type T at an offset of a mapping.
func at[T any](mem []byte, offset int) *T {
	var t T
	_ = mem[offset+int(unsafe.Sizeof(t))-1]
	return (*T)(unsafe.Pointer(&mem[offset]))
}
