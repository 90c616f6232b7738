package ps

import (
	"fmt"
	"slices"
)

// Mode names a consistency.
type Mode string

const (
	// Async applies each gradient when it arrives; nobody waits for anybody.
	Async Mode = "async"
	// Sync applies the sum of all workers' gradients of a step at once, added in
	// the order of the workers' indices, and answers with the values after it.
	Sync Mode = "sync"
)

// verdict is what a gate says about a gradient that is offered.
type verdict uint8

const (
	take      verdict = iota // receive it
	later                    // it belongs to a later step: offer it again after the next update
	stale                    // its step is over: receive it and throw it away
	duplicate                // the worker has given this part of this step already
)

// gate decides which gradients enter an update. It is pure: events in, answers out. A gate guards blocks that
// travel as separate messages, its parts, and that are updated together: one block when all workers are waited for,
// a table's whole shard when the fastest aggregate workers make a step. So a shard is never updated by different
// workers' gradients in different places.
type gate struct {
	mode      Mode
	parts     int
	aggregate int // workers of a step; fewer than all: backup workers

	step   int64 // updates made; the step that is being gathered
	active []bool
	taken  []int // parts accepted of each worker for this step
	landed []int // parts arrived of each worker for this step
	whole  int   // workers all of whose parts have arrived
}

func newGate(mode Mode, workers, aggregate, parts int) *gate {
	g := &gate{mode: mode, parts: parts, aggregate: aggregate,
		active: make([]bool, workers), taken: make([]int, workers), landed: make([]int, workers)}
	for w := range g.active {
		g.active[w] = true
	}
	return g
}

// offer asks whether a part of a worker's gradient, computed from the values
// of the given step, may enter.
func (g *gate) offer(worker int, step int64) verdict {
	if g.mode == Async {
		return take
	}
	switch {
	case step < g.step:
		return stale
	case step > g.step:
		return later
	case g.taken[worker] == g.parts:
		return duplicate
	}
	g.taken[worker]++
	return take
}

// arrive records that a part which offer let in for step has arrived. The verdict is stale if the step was
// completed without it meanwhile. due reports whether the update is to be made now.
func (g *gate) arrive(worker int, step int64) (v verdict, due bool) {
	if g.mode == Async {
		return take, true
	}
	if step < g.step {
		return stale, false
	}
	g.landed[worker]++
	if g.landed[worker] == g.parts {
		g.whole++
	}
	return take, g.due()
}

// forget takes back an offer whose payload will not come.
func (g *gate) forget(worker int, step int64) {
	if g.mode == Sync && step == g.step {
		g.taken[worker]--
	}
}

// due reports whether the step has all it needs: the gradients of aggregate workers or, if they are fewer, of every
// worker that is still active. A worker that finished gives no more gradients and is not waited for.
func (g *gate) due() bool {
	need := 0
	for w, a := range g.active {
		if a || g.landed[w] == g.parts {
			need++
		}
	}
	need = min(need, g.aggregate)
	return g.mode == Sync && need > 0 && g.whole >= need
}

// begun reports whether the step has a part of a gradient, or is getting one.
func (g *gate) begun() bool { return slices.Max(g.taken) > 0 }

// member reports whether the worker's gradient is whole and enters the update.
func (g *gate) member(worker int) bool { return g.landed[worker] == g.parts }

// inOrder reports whether the gradients of all active workers before this one have landed, so that this worker's
// gradient can be added as it comes.
func (g *gate) inOrder(worker int) bool {
	for w := range worker {
		if g.active[w] && g.landed[w] != g.parts {
			return false
		}
	}
	return true
}

// advance begins the next step.
func (g *gate) advance() {
	g.step++
	g.whole = 0
	clear(g.taken)
	clear(g.landed)
}

// retire takes a worker that is done out of the count. It reports whether the
// update is due now.
func (g *gate) retire(worker int) bool {
	g.active[worker] = false
	return g.due()
}

// missing lists the workers that the step waits for.
func (g *gate) missing() []int {
	var m []int
	for w, a := range g.active {
		if a && g.landed[w] != g.parts {
			m = append(m, w)
		}
	}
	return m
}

// Stop says when a worker has trained enough.
type Stop struct {
	// LastStep ends a worker when the shared global step reaches it: all workers
	// together make LastStep steps, and a late joiner only helps with the rest.
	LastStep int64
	// NumSteps ends a worker when the global step has grown by NumSteps since it
	// joined: one that joins at 200 goes on to 200 + NumSteps.
	NumSteps int64
}

// Reached reports whether a worker that joined at global step joined is
// finished at global step now. With neither rule set it never is.
func (s Stop) Reached(joined, now int64) bool {
	return s.LastStep > 0 && now >= s.LastStep || s.NumSteps > 0 && now-joined >= s.NumSteps
}

// Validate refuses rules that end nothing or contradict each other.
func (s Stop) Validate() error {
	if s.LastStep < 0 || s.NumSteps < 0 || (s.LastStep > 0) == (s.NumSteps > 0) {
		return configError("last step %d, number of steps %d: exactly one must be positive", s.LastStep, s.NumSteps)
	}
	return nil
}

func (s Stop) String() string {
	if s.LastStep > 0 {
		return fmt.Sprintf("at global step %d", s.LastStep)
	}
	return fmt.Sprintf("%d steps after joining", s.NumSteps)
}
