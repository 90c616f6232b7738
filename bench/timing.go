package bench

// How one size is timed: how many calls in how many repetitions, and the checks before and after.

import (
	"context"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

const (
	defaultRep = 3 * time.Millisecond
	maxReps    = 2000
	minReps    = 11
)

// OSUCalls are the calls that OSU's programs time by default for a size, and those that they make before (OSU 7,
// osu_util.h).
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
	// Up to a hundred samples, for the percentiles. Collectives are timed call by call anyway; of other operations, with
	// less than ten calls in a batch, the barrier before it would be timed, too.
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

// batch runs the measured thing count times and returns the time of one unit in microseconds, on this rank. It notes the
// time of each in l.
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
	// A rank that has no part in the last batch, or has ended its own sooner, would go on to verify while others are still
	// timed.
	return samples, p.calls * p.reps, barrier(ctx, t.c)
}

// checked is measure between looks at the results: one before and, by option, one after.
func (t timer) checked(ctx context.Context, bytes int, verify func(context.Context) error, b batch, l *laps) (samples []float64, calls int, err error) {
	if err = verify(ctx); err != nil {
		return nil, 0, err
	}
	samples, calls, err = t.measure(ctx, bytes, b, l)
	if err == nil && t.o.Check == CheckEvery {
		err = verify(ctx)
	}
	return samples, calls, err
}

// calibrate finds how many calls fill a repetition, and how many repetitions the budget; rank 0 decides. A batch that fills
// a repetition must do so twice in a row: once it may have been held up.
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
