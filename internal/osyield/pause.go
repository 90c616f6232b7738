package osyield

import "time"

// Pause is the time between two looks at a word that another processor is to write. Looks in close order keep asking
// for its cache line while the writer needs it: between processors that are far from each other a short
// message took 0.45 µs so, and 0.28 µs with pauses. The zero Pause takes no time.
type Pause struct{ count uint32 }

const (
	// pauseTime is what gained most; a message waits for half of it in the mean.
	pauseTime = 60 * time.Nanosecond
	// pauseSample pauses are timed, pauseTries times, of which the quickest was not interrupted.
	pauseSample = 64
	pauseTries  = 8
)

// NewPause finds out how long the processor's own pause takes, which differs by an order of magnitude between
// them. That takes some 10 to 30 µs.
func NewPause() Pause {
	quickest := time.Hour
	for range pauseTries {
		begun := time.Now()
		pause(pauseSample)
		quickest = min(quickest, time.Since(begun))
	}
	return pauseOf(quickest)
}

// pauseOf is the Pause where pauseSample of the processor's own take so long.
func pauseOf(sample time.Duration) Pause {
	n := (pauseTime*pauseSample + sample/2) / max(sample, 1)
	return Pause{uint32(min(max(n, 1), pauseSample))}
}

// Pass lets the time pass.
func (p Pause) Pass() { pause(p.count) }
