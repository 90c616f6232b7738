package shm

import (
	"math"

	"github.com/fisterra-hpc/fisterra/internal/procmem"
)

// Two ways lead from one rank's memory to another's. process_vm_* copies once,
// in the kernel, at both ends at the same time; the ring copies twice, in the
// ranks themselves, the one writing while the other reads. Which is quicker
// depends on how the kernel copies on this processor, so it is measured: once,
// when the provider is opened (procmem.PerByte).

const (
	// ringOverCopy is how many times longer than a copy within one core a payload of 64 KiB takes through the ring between
	// near cores. It was measured on an AMD EPYC (Zen 3), whose kernel takes 3 to 5.5 times as long as such a copy.
	// process_vm_* of both ranks at once takes about as long as one such call on a rank's own memory.
	ringOverCopy = 3
	// kernelOverCopy stands in for the measured time of the kernel's copies where the kernel does not allow them.
	kernelOverCopy = 8

	// Messages of at least this size are not sent eagerly. Shorter ones that have just been written take twice as long to pull
	// where the peer is far: each line comes out of the writer's caches.
	pullFrom   = 16 << 10
	streamFrom = eagerBytes
	// farPullBytes is the length of the shortest message that is pulled where the peer is far: shorter ones take less time
	// through a ring that is written past the caches.
	farPullBytes = 2 << 20
)

// neverPull is the size from which to pull if that never pays.
const neverPull = math.MaxInt

// habit is how a rank sends its large messages.
type habit struct {
	rendezvousBytes int // from here they are not eager
	pullBytes       int // from here they may be pulled
	// slow is how many nanoseconds a byte takes at least into the ring of a peer that is far (memcopy.Crossing): as many as
	// in a copy by the kernel. Into the ring of a near peer it takes half as many.
	slow float64
	// once is how long a byte of a copy within this rank takes, in nanoseconds.
	once float64
	// paced: the kernel copies long messages only where the pace of the ring shows that this is quicker.
	paced bool
}

// calibrate finds the habit for a number of copies, see Config.
func calibrate(copies int) habit {
	kernel, once, err := procmem.PerByte()
	if err != nil {
		kernel = kernelOverCopy * once
	}
	switch {
	case copies == 1 || copies == 0 && err == nil && kernel < ringOverCopy*once:
		return habit{rendezvousBytes: pullFrom, pullBytes: pullFrom, slow: kernel, once: once}
	case copies == 2 || err != nil:
		return habit{rendezvousBytes: streamFrom, pullBytes: neverPull, slow: kernel, once: once}
	}
	return habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, slow: kernel, once: once, paced: true}
}
