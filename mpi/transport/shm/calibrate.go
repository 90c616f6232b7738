package shm

import (
	"math"
	"os"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/procmem"
)

// Two ways lead from one rank's memory to another's. process_vm_* copies once,
// in the kernel, at both ends at the same time; the ring copies twice, in the
// ranks themselves, the one writing while the other reads. Which is quicker
// depends on how the kernel copies on this processor, so it is measured: once,
// when the provider is opened, in about a tenth of a millisecond.

const (
	sampleBytes = 64 << 10
	samples     = 16

	// ringOverCopy is how many times longer than a copy within one core a
	// payload of sampleBytes takes through the ring. process_vm_* of both ranks
	// takes about as long as one such call on a rank's own memory.
	ringOverCopy = 4.5

	// Messages of at least this size are not sent eagerly.
	pullFrom   = 8 << 10
	streamFrom = eagerBytes
)

// neverPull is the size from which to pull if that never pays.
const neverPull = math.MaxInt

// habit is how a rank sends its large messages.
type habit struct {
	rendezvousBytes int // from here they are not eager
	pullBytes       int // from here they may be pulled
	// kernel is how long it takes to copy a byte, in nanoseconds, for comparison
	// with the ring (pace.go). 0: no comparing.
	kernel float64
}

// calibrate finds the habit for a number of copies, see Config.
func calibrate(copies int) habit {
	switch copies {
	case 1:
		return habit{rendezvousBytes: pullFrom, pullBytes: pullFrom}
	case 2:
		return habit{rendezvousBytes: streamFrom, pullBytes: neverPull}
	}
	kernel, own, err := timeCopies()
	switch {
	case err != nil:
		return habit{rendezvousBytes: streamFrom, pullBytes: neverPull}
	case float64(kernel) < ringOverCopy*float64(own):
		return habit{rendezvousBytes: pullFrom, pullBytes: pullFrom}
	}
	return habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, kernel: float64(kernel.Nanoseconds()) / sampleBytes}
}

// timeCopies times copies of sampleBytes by process_vm_* and within this rank.
func timeCopies() (kernel, own time.Duration, err error) {
	src, dst := make([]byte, sampleBytes), make([]byte, sampleBytes)
	c := newCopier()
	c.pid, c.local, c.remote = os.Getpid(), dst, procmem.AddressOf(src)
	kernel, own = time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range samples {
		begun := time.Now()
		c.copy()
		kernel = min(kernel, time.Since(begun))
		begun = time.Now()
		copy(dst, src)
		own = min(own, time.Since(begun))
	}
	return kernel, own, c.err
}
