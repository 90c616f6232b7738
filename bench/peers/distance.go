package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A virtual machine's processors are moved between the cores of its host, next to each other or caches apart, every few
// seconds on some: what a short message takes then differs severalfold, and medians of a few launches would compare the
// places rather than the programs.

// distance is the time in which two processors exchange a cache line each; 0 is one that is not known.
type distance time.Duration

// like reports whether two distances are of one place: places differ by more than the noise of one.
func (d distance) like(e distance) bool { return 5*max(d, e) <= 7*min(d, e) }

// distanceMeter returns a function that measures the distance of the two processors of this process. If there are not just
// two, nobody knows which ones the ranks will run on, and the function says that the distance is not known.
func distanceMeter() func() distance {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil || allowed.Count() != 2 {
		return func() distance { return 0 }
	}
	var pair [2]int
	n := 0
	for i := 0; n < len(pair); i++ {
		if allowed.IsSet(i) {
			pair[n] = i
			n++
		}
	}
	return func() distance { return exchangeTime(pair, &allowed) }
}

// exchange is one line of memory, alone in what a processor fetches at once.
type exchange struct {
	round atomic.Int64
	_     [248]byte
}

const (
	exchangeBatches = 41
	exchangeRounds  = 200 // of a batch
)

// exchangeTime measures for some milliseconds: the median over batches of the time of a round. It returns 0 if a
// processor cannot be chosen.
func exchangeTime(pair [2]int, allowed *unix.CPUSet) distance {
	var lines [2]exchange
	var times []time.Duration
	var refused atomic.Bool
	var both sync.WaitGroup
	for side, processor := range pair {
		both.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var one unix.CPUSet
			one.Set(processor)
			if unix.SchedSetaffinity(0, &one) != nil {
				refused.Store(true)
				return
			}
			defer func() { _ = unix.SchedSetaffinity(0, allowed) }() // what it had before it also gets
			mine, other := &lines[side].round, &lines[1-side].round
			round := int64(0)
			for range exchangeBatches {
				began := time.Now()
				for range exchangeRounds {
					round++
					mine.Store(round)
					for other.Load() < round && !refused.Load() {
					}
				}
				if side == 0 {
					times = append(times, time.Since(began)/exchangeRounds)
				}
			}
		})
	}
	both.Wait()
	if refused.Load() {
		return 0
	}
	slices.Sort(times)
	return distance(times[len(times)/2])
}

// lookTime is between two looks at the distance while it is waited for.
const lookTime = 50 * time.Millisecond

// moves counts what the moving of processors cost.
type moves struct {
	distances       []distance // of the rounds of groups
	repeated, mixed int        // launches taken again, and those in which the processors moved all the same
}

func (m *moves) String() string {
	d := slices.Sorted(slices.Values(m.distances))
	if len(d) == 0 || d[len(d)-1] == 0 {
		return "distance of the processors: unknown, for there are not just two"
	}
	return fmt.Sprintf("distance of the processors: an exchange of two lines takes %v (median over rounds; %v to %v); %d launches were taken again because it changed; in %d it did all the same, and their rounds count where there are no others",
		time.Duration(d[len(d)/2]), time.Duration(d[0]), time.Duration(d[len(d)-1]), m.repeated, m.mixed)
}

// steadyLaunch launches a program. For short messages it does so until one launch has begun and ended with the processors
// at the distance, for up to c.steadyTime: then the last one is taken, whatever distance it met. What long messages take
// depends less on the distance, and a launch of theirs lasts too long to be repeated.
func (c *comparison) steadyLaunch(ctx context.Context, at distance, p *program, g group) (launched, error) {
	if !g.short() {
		return launch(ctx, p, g, c.sandbox, c.budget)
	}
	patience, cancel := context.WithTimeout(ctx, c.steadyTime)
	defer cancel()
	for {
		began := c.awaitDistance(patience, at)
		l, err := launch(ctx, p, g, c.sandbox, c.budget)
		if err != nil || began && c.distance().like(at) {
			return l, err
		}
		if patience.Err() != nil {
			c.moves.mixed++
			return l, nil
		}
		c.moves.repeated++
	}
}

// awaitDistance waits until the processors are at the distance, and reports whether they are.
func (c *comparison) awaitDistance(ctx context.Context, at distance) bool {
	look := time.NewTicker(lookTime)
	defer look.Stop()
	for !c.distance().like(at) {
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
	}
	return true
}
