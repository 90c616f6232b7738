package shm

import "time"

// Whoever reads what another processor has just written takes the lines out of the writer's caches, and the writer has to get
// each back before it writes there again. Where the two are far from each other, that costs more than a second copy, through
// a ring that is written past the caches. Only the reader can see it: it copies memory that it reads for the second time, or
// that comes from near, nearly as quickly as its own. The reader leaves its pace in the slot of the pull, and the sender uses
// the ring while what it sends is fresh and far.

// pace is how quickly a pull has copied out of mapped memory.
type pace uint64

const (
	paceUnknown pace = iota
	paceQuick
	paceSlow
)

const (
	// slowOverCopy is how many times as long as a copy within one core a copy of fresh lines from a far core takes at least.
	slowOverCopy = 2.7
	// slowPulls is how many slow pulls in a row switch to the ring. A single one may have been interrupted; and the first
	// pull of memory that went through the ring before has to fetch it from far away.
	slowPulls = 8
	// leastPassBytes go through the ring before pulling is tried again; twice as much, up to mostPassBytes, each time that
	// the trial was in vain.
	leastPassBytes, mostPassBytes = 16 << 20, 1 << 30
	// timedPulls: of pulls shorter than timedBytes, one in so many is timed.
	timedPulls = 4
	timedBytes = 128 << 10
)

// times reports whether a pull of n bytes is to be timed.
func (ep *endpoint) times(n int) bool {
	ep.mappedPulls++
	return n < farPullBytes && (n >= timedBytes || ep.mappedPulls%timedPulls == 0)
}

// paceOf judges a copy of nBytes by the time it took. once is how many nanoseconds a byte takes in a copy within this rank.
func paceOf(took time.Duration, nBytes int, once float64) pace {
	if float64(took.Nanoseconds()) > slowOverCopy*once*float64(nBytes) {
		return paceSlow
	}
	return paceQuick
}

// diverts reports whether the next message out of mapped memory, of n bytes, goes through the ring. Where the kernel is to
// copy messages of that length it does not: the kernel's copies read fresh lines like any others, and are no way around.
func (ep *endpoint) diverts(n int) bool {
	return n < farPullBytes && !ep.copyable(n) && ep.out.freshness.around(n)
}

// freshness is what the paces of a peer's pulls have shown.
type freshness struct {
	slow      int // slow pulls in a row
	ringBytes int // still to go through the ring
	passBytes int // what was to go through the ring the last time
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
