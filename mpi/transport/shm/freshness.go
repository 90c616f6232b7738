package shm

import "time"

// Whoever reads what another processor has just written takes the lines out of that one's caches, and the writer has to
// have each back before it writes there again. Where the two are far from each other, that costs more than a
// second copy, through a ring that is written past the caches. Only the reader can see it: what is read
// for the second time, or comes from near, it copies nearly as quickly as memory of its own. It leaves its pace in the
// slot of the pull, and the sender uses the ring while what it sends is fresh and far.

// pace is how quickly a pull has copied out of mapped memory.
type pace uint64

const (
	paceUnknown pace = iota
	paceQuick
	paceSlow
)

const (
	// slowOverCopy is how many times longer than a copy within one core a copy of fresh lines from a far one takes at least.
	slowOverCopy = 2.7
	// slowPulls in a row before the ring is used: an interrupt slows one, and the first of memory that went through the ring
	// before has far to go.
	slowPulls = 8
	// So much goes through the ring before pulling is tried again: leastPassBytes, and twice as much each time that it has been in vain.
	leastPassBytes, mostPassBytes = 16 << 20, 1 << 30
	// timedPulls: of so many pulls that are shorter than timedBytes one is timed.
	timedPulls = 4
	timedBytes = 128 << 10
)

// times reports whether a pull of n bytes is to be timed.
func (ep *endpoint) times(n int) bool {
	ep.mappedPulls++
	return n < farPullBytes && (n >= timedBytes || ep.mappedPulls%timedPulls == 0)
}

// paceOf judges a copy, where one within this rank takes once nanoseconds a byte.
func paceOf(took time.Duration, nBytes int, once float64) pace {
	if float64(took.Nanoseconds()) > slowOverCopy*once*float64(nBytes) {
		return paceSlow
	}
	return paceQuick
}

// diverts reports whether the next message out of mapped memory, of n bytes, goes through the ring.
// Kernel copies read fresh lines as any others, and are no way around.
func (ep *endpoint) diverts(n int) bool {
	return n < farPullBytes && !ep.copyable(n) && ep.out.freshness.around(n)
}

// freshness is what the paces of a peer's pulls have shown.
type freshness struct {
	slow      int // in a row
	ringBytes int // that still go through the ring
	passBytes int // that went through it the last time
}

func (f *freshness) judge(p pace) {
	switch p {
	case paceQuick:
		f.slow, f.passBytes = 0, 0
	case paceSlow:
		if f.slow++; f.slow == slowPulls {
			f.passBytes = min(max(leastPassBytes, 2*f.passBytes), mostPassBytes)
			f.slow, f.ringBytes = 0, f.passBytes
		}
	}
}

// around reports whether the next message, of n bytes, goes through the ring.
func (f *freshness) around(n int) bool {
	if f.ringBytes <= 0 {
		return false
	}
	f.ringBytes -= n
	return true
}
