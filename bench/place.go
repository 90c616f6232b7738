package bench

import (
	"context"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// place is where two ranks of one host are while figures are taken that are compared with each other. A virtual machine's
// processors are moved between the cores of its host, every few seconds on some, and what a short message takes changes
// severalfold: figures of two places say nothing of each other. What an exchange of messages takes tells the places apart.
//
// All methods are collective over the ranks that watch; a nil place is not watched.
type place struct {
	c *mpi.Comm
	// exchange is the time of exchanging a message, on this rank.
	exchange func(context.Context) (time.Duration, error)

	// Of rank 0.
	usual    time.Duration // what an exchange takes at the usual place
	patience time.Duration // time left for waiting and for figures taken again: as much as those that count have taken
}

const (
	placeLooks    = 15 // to find where the ranks are usually
	placeBatches  = 15
	placeRounds   = 100 // of exchanges in a batch
	placePatience = 5 * time.Second
	// Between looks the ranks sleep: processors that are busy all the time stay where they are.
	placeGap = 20 * time.Millisecond
)

// newPlace finds where the ranks are most of the time, by looks with a gap between them. Only two ranks of one host with a
// processor each are watched: of more ranks nobody knows which processors they are on.
func newPlace(ctx context.Context, c *mpi.Comm, gap time.Duration) (*place, error) {
	if near, _ := neighbours(c); c.Size() != 2 || near < 0 || c.TakeTurns(0, near) {
		return nil, nil
	}
	p := &place{c: c, exchange: func(ctx context.Context) (time.Duration, error) { return exchangeTime(ctx, c) }}
	var looks []float64
	for range placeLooks {
		took, err := p.exchange(ctx)
		if err != nil {
			return nil, err
		}
		looks = append(looks, took.Seconds())
		if err := pause(ctx, gap); err != nil {
			return nil, err
		}
	}
	p.usual = time.Duration(Quantile(looks, 0.5) * float64(time.Second))
	return p, nil
}

// pause lets time pass in which the processors may be moved.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// exchangeTime is the median time of exchanging a message, on this rank.
func exchangeTime(ctx context.Context, c *mpi.Comm) (time.Duration, error) {
	times := make([]float64, placeBatches)
	for i := range times {
		start := time.Now()
		for range placeRounds {
			if err := barrier(ctx, c); err != nil {
				return 0, err
			}
		}
		times[i] = time.Since(start).Seconds() / placeRounds
	}
	return time.Duration(Quantile(times, 0.5) * float64(time.Second)), nil
}

// verdict is what rank 0 makes of a look.
type verdict int64

const (
	isThere verdict = iota
	isAway
	isAwayForLong // no patience is left
)

// look tells all ranks whether they are at their usual place.
func (p *place) look(ctx context.Context, waited time.Duration) (verdict, error) {
	took, err := p.exchange(ctx)
	if err != nil {
		return isAway, err
	}
	v := isThere
	switch {
	case samePlace(took, p.usual):
	case waited < min(p.patience, placePatience):
		v = isAway
	default:
		v = isAwayForLong
	}
	return fromRoot(ctx, p.c, v)
}

// samePlace reports whether two times of an exchange are of one place: places differ by more than the noise of one.
func samePlace(a, b time.Duration) bool { return 5*max(a, b) <= 7*min(a, b) }

// await waits until the ranks are at their usual place, or have been away for so long that it is no use.
func (p *place) await(ctx context.Context) (verdict, error) {
	began := time.Now()
	for {
		v, err := p.look(ctx, time.Since(began))
		if err != nil || v != isAway {
			p.patience -= time.Since(began)
			return v, err
		}
		if err := pause(ctx, placeGap); err != nil {
			return v, err
		}
	}
}

// take takes a figure again until the ranks were at their usual place before and after, or patience ends.
func (p *place) take(ctx context.Context, figure func() (float64, error)) (float64, error) {
	if p == nil {
		return figure()
	}
	for {
		before, err := p.await(ctx)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		x, err := figure()
		if err != nil {
			return 0, err
		}
		after := isAwayForLong
		if before == isThere {
			if after, err = p.look(ctx, 0); err != nil {
				return 0, err
			}
		}
		if after != isAway {
			p.patience += time.Since(began)
			return x, nil
		}
		p.patience -= time.Since(began)
	}
}

// timePlan is timePlan of the package at the usual place.
func (p *place) timePlan(ctx context.Context, c *mpi.Comm, cfg collective.Config, op collectiveOp, in memory, o Options) (float64, error) {
	return p.take(ctx, func() (float64, error) { return timePlan(ctx, c, cfg, op, in, o) })
}
