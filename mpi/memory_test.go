package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
)

func TestAllocRefusals(t *testing.T) {
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 1), func(_ context.Context, c *mpi.Comm) error {
		if _, err := mpi.Alloc[byte](c, -1); !errors.Is(err, mpi.ErrArgument) {
			return fmt.Errorf("a negative length: %w", err)
		}
		if _, err := mpi.Alloc[float64](c, 1<<52); err == nil {
			return errors.New("32 PiB were allocated")
		}
		empty, err := mpi.Alloc[int](c, 0)
		if err != nil || len(empty) != 0 {
			return fmt.Errorf("nothing: %v, %v", empty, err)
		}
		buf, err := mpi.Alloc[uint16](c, 12345)
		if err != nil {
			return err
		}
		for i, v := range buf {
			if v != 0 {
				return fmt.Errorf("element %d is %d", i, v)
			}
		}
		if err := mpi.Free(c, buf); err != nil {
			return err
		}
		if err := mpi.Free(c, empty); err != nil {
			return err
		}
		if err := mpi.Free(c, make([]int, 5)); !errors.Is(err, mpi.ErrArgument) {
			return fmt.Errorf("heap memory: %w", err)
		}
		return nil
	})
}

// TestAllocHugePages: memory of some MiB consists of huge pages, also where the system makes none of shared memory by itself.
func TestAllocHugePages(t *testing.T) {
	if err := collapses(); err != nil {
		t.Skipf("the kernel makes no huge pages of shared memory: %v", err)
	}
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 1), func(_ context.Context, c *mpi.Comm) error {
		const whole = 2
		buf, err := mpi.Alloc[byte](c, whole*shm.HugePageBytes+5000)
		if err != nil {
			return err
		}
		for i, v := range buf {
			if v != 0 {
				return fmt.Errorf("byte %d is %d", i, v)
			}
		}
		inHuge, err := hugeBytes(buf)
		if err != nil {
			return err
		}
		if inHuge != whole*shm.HugePageBytes {
			return fmt.Errorf("%d bytes are in huge pages, want %d", inHuge, whole*shm.HugePageBytes)
		}
		return mpi.Free(c, buf)
	})
}

// collapses is nil if the kernel makes a huge page of ordinary ones.
func collapses() error {
	fd, err := shm.CreateSegment("fisterra-test", shm.HugePageBytes, shm.HugePageBytes, shm.OrdinaryPages)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	mem, err := shm.Map(fd, shm.HugePageBytes)
	if err != nil {
		return err
	}
	return errors.Join(unix.Madvise(mem, unix.MADV_COLLAPSE), shm.Unmap(mem))
}

// hugeBytes is how much of the mapping that begins with buf is in huge pages.
func hugeBytes(buf []byte) (int, error) {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	_, area, found := strings.Cut("\n"+string(smaps), fmt.Sprintf("\n%x-", uintptr(unsafe.Pointer(&buf[0]))))
	if !found {
		return 0, errors.New("it is not mapped for itself")
	}
	area, _, _ = strings.Cut(area, "VmFlags:")
	kib := 0
	for line := range strings.Lines(area) {
		name, value, _ := strings.Cut(line, ":")
		var n int
		switch name {
		case "ShmemPmdMapped", "Shared_Hugetlb", "Private_Hugetlb":
			if _, err := fmt.Sscan(value, &n); err != nil {
				return 0, fmt.Errorf("%q: %w", line, err)
			}
			kib += n
		}
	}
	return kib << 10, nil
}
