package shm

import (
	"math"
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
	kernel, err := procmem.PerByte()
	switch {
	case err != nil:
		return habit{rendezvousBytes: streamFrom, pullBytes: neverPull}
	case kernel < ringOverCopy*copyPerByte():
		return habit{rendezvousBytes: pullFrom, pullBytes: pullFrom}
	}
	return habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, kernel: kernel}
}

// copyPerByte is how many nanoseconds a copy of a byte takes within this rank.
func copyPerByte() float64 {
	src, dst := make([]byte, sampleBytes), make([]byte, sampleBytes)
	best := time.Duration(math.MaxInt64)
	for range samples {
		begun := time.Now()
		copy(dst, src)
		best = min(best, time.Since(begun))
	}
	return float64(best.Nanoseconds()) / sampleBytes
}
