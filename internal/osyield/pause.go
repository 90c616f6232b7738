package osyield

import "time"

// Pause is the time between two looks at a word that a certain other processor is to write. Looks in close order keep asking
// for the word's cache line while the writer needs it. Between processors that are far from each other a short message took
// 0.45 µs so, and 0.28 µs with pauses of 60 ns; between neighbours it took 0.07 µs with the shortest pauses, and 0.10 µs with
// those of 60 ns. How far the writer is shows in the time of a look that finds something new. It may change, since the
// hypervisor moves processors, and so a wait is timed every now and then. The zero Pause takes no time and learns nothing.
type Pause struct {
	each  float64 // how long the processor's own pause takes, in nanoseconds
	clock float64 // how long it takes to look at the clock
	fetch float64 // how long looks that found something took of late
	count uint32  // of the processor's own
	waits uint32  // so far
}

const (
	// firstFetch is fetch before anything has been timed, that of processors which are not near.
	firstFetch = 100
	// pauseShare is the share of fetch that gained most as a pause, near and far.
	pauseShare = 0.45
	// timedWait: one of so many waits is timed. It looks at the clock before each look at the word.
	timedWait = 2048
	// weight is that of the newest time in the mean of late ones. What took longer than fetchMost was interrupted.
	weight, fetchMost = 1.0 / 4, 1000

	// pauseSample pauses are timed together, and that pauseTries times: the quickest of these was not interrupted.
	pauseSample = 64
	pauseTries  = 8
)

// NewPause finds out how long the processor's own pause takes, which differs by an order of magnitude between
// them. That takes some 10 to 30 µs.
func NewPause() Pause {
	each, clock := time.Hour, time.Hour
	begun := time.Now()
	for range pauseTries {
		before := time.Since(begun)
		pause(pauseSample)
		after := time.Since(begun)
		each, clock = min(each, after-before), min(clock, time.Since(begun)-after)
	}
	return pauseOf(each, clock)
}

// pauseOf is the Pause of a processor on which pauseSample of its own pauses, and a look at the clock, take so long.
func pauseOf(sample, clock time.Duration) Pause {
	p := Pause{each: max(1, float64(sample-clock)/pauseSample), clock: float64(clock), fetch: firstFetch}
	p.adapt()
	return p
}

// adapt follows fetch.
func (p *Pause) adapt() {
	p.count = uint32(min(max(pauseShare*p.fetch/p.each+0.5, 1), pauseSample))
}

// Pass lets the time pass.
func (p *Pause) Pass() { pause(p.count) }

// Timed counts a wait, and reports whether Look is to do it.
func (p *Pause) Timed() bool {
	p.waits++
	return p.waits%timedWait == 0 && p.each > 0
}

// Look calls look at most looks times, with pauses between, until it finds something. It reports whether it did, and learns
// how long that look took.
func (p *Pause) Look(looks int, look func() bool) bool {
	begun := time.Now()
	for i := range looks {
		if i > 0 {
			p.Pass()
		}
		before := time.Since(begun)
		if look() {
			p.learn(float64(time.Since(begun)-before) - p.clock)
			return true
		}
	}
	return false
}

// learn takes how long a look took into account.
func (p *Pause) learn(took float64) {
	if took > fetchMost {
		return
	}
	p.fetch += weight * (max(took, 0) - p.fetch)
	p.adapt()
}
