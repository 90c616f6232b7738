// Package bench measures messages and collectives through the public
// interfaces of mpi and collective, with the operations, flags and output of
// the OSU micro-benchmarks where those have them. Every result is checked,
// byte by byte, before anything is timed.
//
// There are two ways of timing. With Options.Iterations a size is timed as
// OSU does: so many calls, the average of all. With Options.Budget it is timed
// in many short repetitions, of which the median and the 10th and 90th
// percentile are reported; this is how comparisons are made, since a median
// over short repetitions ignores what else the machine was doing.
//
// A collective is timed call by call. Messages are timed in batches, so that the
// clock is not part of what it measures; with Options.Tail every iteration of
// theirs is timed, too, and holds one reading of the clock (ClockMicroseconds).
package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Options say what is measured and how. The zero value of a field is its default.
type Options struct {
	Sizes      []int         // in bytes, ascending
	Iterations int           // calls per size, of windows of messages where there are any; 0: OSU's (OSUCalls), unless Budget is set
	Skip       int           // calls before timing; 0: OSU's (OSUCalls), with Budget those of the calibration; negative: none
	Budget     time.Duration // time per size, calibration included, Skip not; Iterations is not used then
	Repetition time.Duration // how long one repetition lasts; 0: 3 ms, or less where so few would fill Budget
	Window     int           // messages in flight, 64 by default, at most MaxWindow
	Tail       bool          // take percentiles of single iterations, too: Row.Tail
	Check      Check
}

// Check says how often results are verified.
type Check int

const (
	CheckOnce  Check = iota // each size once, before timing
	CheckEvery              // and once more after it, as OSU's -c
)

// Row is one measured size.
type Row struct {
	Op     string  `json:"op"`
	Bytes  int     `json:"bytes"`
	Ranks  int     `json:"ranks"`
	Median float64 `json:"median_us"` // of the repetitions; with Iterations, of the percentile samples
	P10    float64 `json:"p10_us"`
	P90    float64 `json:"p90_us"`
	Reps   int     `json:"reps"`

	// Average is over all calls and ranks; Least and Most are the averages of
	// the fastest and the slowest rank (point to point: of rank 0).
	Average    float64 `json:"avg_us"`
	Least      float64 `json:"min_us"`
	Most       float64 `json:"max_us"`
	Iterations int     `json:"iterations"`

	// Tail is nil without Options.Tail. It is of the first 1,048,576 iterations.
	Tail *Tail `json:"tail,omitempty"`
}

// MBps is the bandwidth of the row in 10⁶ B/s, for one message of its size
// in the row's time.
func (r Row) MBps() float64 { return float64(r.Bytes) / r.Average }

// Rate is the number of messages per second.
func (r Row) Rate() float64 { return 1e6 / r.Average }

// ErrWrong: a result was not what it must be.
var ErrWrong = errors.New("wrong result")

// MaxWindow bounds Options.Window: a rank that has some times as many large messages of a peer waiting takes the peer
// for broken, and no program has so many under way.
const MaxWindow = 1 << 20

// ErrUsage: the operation or its options make no sense here.
var ErrUsage = errors.New("usage")

const (
	defaultWindow = 64
	defaultRep    = 3 * time.Millisecond
	maxReps       = 2000
	minReps       = 11
)

// OSUCalls are the calls of a size that OSU's programs time by default, and those before (OSU 7, osu_util.h).
func OSUCalls(k Kind, bytes int) (timed, before int) {
	large := bytes > 8<<10
	switch {
	case k == Windows && large:
		return 20, 2
	case k == Windows:
		return 100, 10
	case k == Collective && large:
		return 100, 10
	case k == Collective:
		return 1000, 100
	case large:
		return 1000, 10
	}
	return 10000, 100
}

// timing is how one size is timed: repetitions of batches of calls.
type timing struct {
	skip, calls, reps int
}

func (o Options) fixedTiming(k Kind, bytes int) timing {
	p := timing{skip: o.Skip, calls: o.Iterations, reps: 1}
	timed, before := OSUCalls(k, bytes)
	if p.calls <= 0 {
		p.calls = timed
	}
	if p.skip == 0 {
		p.skip = before
	}
	// Up to a hundred samples, for the percentiles. Collectives are timed call by call anyway; of others so few calls
	// in a batch would be timed with the barrier before it.
	least := 10
	if k == Collective {
		least = 1
	}
	for _, n := range []int{100, 50, 20, 10, 5, 2} {
		if p.calls%n == 0 && p.calls/n >= least {
			p.calls, p.reps = p.calls/n, n
			break
		}
	}
	return p
}

// batch runs the measured thing count times and returns the time of one unit
// in microseconds, on this rank. It takes the time of each in l.
type batch func(ctx context.Context, count int, l *laps) (float64, error)

// timer measures batches on all ranks of a communicator alike.
type timer struct {
	c    *mpi.Comm
	kind Kind
	o    Options
}

// measure times b, which all ranks run, for messages of so many bytes, and its iterations in l.
func (t timer) measure(ctx context.Context, bytes int, b batch, l *laps) (samples []float64, calls int, err error) {
	p := t.o.fixedTiming(t.kind, bytes)
	if t.o.Budget > 0 {
		if p, err = t.calibrate(ctx, b); err != nil {
			return nil, 0, err
		}
	}
	if p.skip > 0 {
		if _, err := b(ctx, p.skip, nil); err != nil {
			return nil, 0, err
		}
	}
	l.room(p.calls * p.reps)
	samples = make([]float64, p.reps)
	for i := range samples {
		if err := barrier(ctx, t.c); err != nil {
			return nil, 0, err
		}
		if samples[i], err = b(ctx, p.calls, l); err != nil {
			return nil, 0, err
		}
	}
	// A rank that has no part in the last batch, or had its own sooner, would go on to verify while others take their time.
	return samples, p.calls * p.reps, barrier(ctx, t.c)
}

// calibrate finds how many calls fill a repetition, and how many repetitions the
// budget; rank 0 decides. A batch that fills one must do so twice: once it may have been held up.
func (t timer) calibrate(ctx context.Context, b batch) (timing, error) {
	rep := t.o.Repetition
	if rep <= 0 {
		rep = min(defaultRep, t.o.Budget/minReps)
	}
	begin := time.Now()
	if _, err := b(ctx, 2, nil); err != nil { // connections, first touch
		return timing{}, err
	}
	calls := 1
	for filled := false; ; {
		if err := barrier(ctx, t.c); err != nil {
			return timing{}, err
		}
		start := time.Now()
		if _, err := b(ctx, calls, nil); err != nil {
			return timing{}, err
		}
		last, err := fromRoot(ctx, t.c, time.Since(start))
		if err != nil {
			return timing{}, err
		}
		if last < rep && calls < 1<<20 {
			filled = false
			calls *= min(max(int(float64(rep)*1.2/float64(max(last, 1))), 2), 16)
			continue
		}
		if filled {
			left, err := fromRoot(ctx, t.c, t.o.Budget-time.Since(begin))
			if err != nil {
				return timing{}, err
			}
			return timing{skip: max(t.o.Skip, 0), calls: calls, reps: min(max(int(left/max(last, 1)), minReps), maxReps)}, nil
		}
		filled = true
	}
}

const (
	tagBarrier = 1000 + iota
	tagRoot
	tagMean
	tagLaps
)

// barrier is a dissemination barrier of the bench's own, so that measuring a
// collective does not depend on it (Hensgen et al. 1988).
func barrier(ctx context.Context, c *mpi.Comm) error {
	p := c.Size()
	var in, out [1]byte
	for step := 1; step < p; step *= 2 {
		if _, err := mpi.Sendrecv(ctx, c, out[:], (c.Rank()+step)%p, tagBarrier, in[:], (c.Rank()-step+p)%p, tagBarrier); err != nil {
			return err
		}
	}
	return nil
}

// fromRoot gives every rank what rank 0 has.
func fromRoot(ctx context.Context, c *mpi.Comm, mine time.Duration) (time.Duration, error) {
	v := []int64{int64(mine)}
	if c.Rank() != 0 {
		_, err := mpi.Recv(ctx, c, v, 0, tagRoot)
		return time.Duration(v[0]), err
	}
	for r := 1; r < c.Size(); r++ {
		if err := mpi.Send(ctx, c, v, r, tagRoot); err != nil {
			return 0, err
		}
	}
	return mine, nil
}

// toRoot collects each rank's samples at rank 0, in rank order; elsewhere it
// returns nil.
func toRoot(ctx context.Context, c *mpi.Comm, mine []float64) ([][]float64, error) {
	if c.Rank() != 0 {
		return nil, mpi.Send(ctx, c, mine, 0, tagMean)
	}
	all := [][]float64{mine}
	for r := 1; r < c.Size(); r++ {
		theirs := make([]float64, len(mine))
		if _, err := mpi.Recv(ctx, c, theirs, r, tagMean); err != nil {
			return nil, err
		}
		all = append(all, theirs)
	}
	return all, nil
}

func usage(format string, args ...any) error {
	return fmt.Errorf("bench: %w: %s", ErrUsage, fmt.Sprintf(format, args...))
}
