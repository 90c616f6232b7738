package bench

import (
	"context"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Tail holds percentiles of single iterations, as OSU's -z prints them: times
// in microseconds, of a latency those of half a round trip, of a collective
// those of a call, averaged over the ranks. Of windows of messages they are
// bandwidths in 10⁶ B/s, the highest last.
type Tail struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// tailOf gives the percentiles by nearest rank. It sorts v.
func tailOf(v []float64) Tail {
	slices.Sort(v)
	at := func(percent int) float64 { return v[(len(v)*percent+99)/100-1] }
	return Tail{P50: at(50), P90: at(90), P99: at(99)}
}

// laps are the times of single iterations in microseconds. A nil *laps takes
// none and reads no clock: what it costs is not to be in other measurements.
type laps struct {
	watch stopwatch
	from  time.Duration
	times []float64
}

// maxLaps bounds the memory for the laps of a size, 8 MiB: further iterations count in the average only.
const maxLaps = 1 << 20

// rootLaps are for operations that rank 0 times alone: elsewhere the clock would only be in its way.
func (o Options) rootLaps(c *mpi.Comm) *laps {
	if !o.Tail || c.Rank() != 0 {
		return nil
	}
	return new(laps)
}

// room gets the memory for n laps before time is taken.
func (l *laps) room(n int) {
	if l != nil {
		l.times = make([]float64, 0, min(n, maxLaps))
	}
}

// begin is where the first iteration begins.
func (l *laps) begin() {
	if l != nil {
		l.watch, l.from = startStopwatch(), 0
	}
}

// next ends an iteration and begins the next one, with one reading of the clock.
func (l *laps) next() {
	if l != nil {
		now := l.watch.now()
		l.add(now - l.from)
		l.from = now
	}
}

// add takes the time of an iteration that was timed anyway.
func (l *laps) add(d time.Duration) {
	if l != nil && len(l.times) < maxLaps {
		l.times = append(l.times, float64(d)/1e3)
	}
}

// tail gives the percentiles of what a lap's microseconds mean; nil without laps.
func (l *laps) tail(value func(us float64) float64) *Tail {
	if l == nil {
		return nil
	}
	for i, us := range l.times {
		l.times[i] = value(us)
	}
	t := tailOf(l.times)
	return &t
}

// average replaces rank 0's laps by their averages over the ranks, iteration by iteration.
func (l *laps) average(ctx context.Context, c *mpi.Comm) error {
	if l == nil {
		return nil
	}
	if c.Rank() != 0 {
		return mpi.Send(ctx, c, l.times, 0, tagLaps)
	}
	theirs := make([]float64, len(l.times))
	for r := 1; r < c.Size(); r++ {
		if _, err := mpi.Recv(ctx, c, theirs, r, tagLaps); err != nil {
			return err
		}
		for i, us := range theirs {
			l.times[i] += us
		}
	}
	for i := range l.times {
		l.times[i] /= float64(c.Size())
	}
	return nil
}
