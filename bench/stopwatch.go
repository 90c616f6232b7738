package bench

import (
	"math"
	"time"
)

// stopwatch reads the monotonic clock alone. time.Now reads the wall clock as well, and so takes twice as long.
type stopwatch struct{ started time.Time }

func startStopwatch() stopwatch { return stopwatch{time.Now()} }

// now is how long the stopwatch has run.
func (w stopwatch) now() time.Duration { return time.Since(w.started) }

// ClockMicroseconds measures what one reading of the clock takes, in
// microseconds: every iteration that is timed singly holds one.
func ClockMicroseconds() float64 {
	const batches, readings = 20, 500
	w, least := startStopwatch(), math.Inf(1)
	for range batches { // the least: others may have interrupted the rest
		start := w.now()
		for range readings {
			_ = w.now()
		}
		least = min(least, float64(w.now()-start)/1e3/readings)
	}
	return least
}
