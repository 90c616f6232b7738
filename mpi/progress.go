package mpi

import (
	"context"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Progress is made by whoever waits. One waiter at a time leads: it polls the
// providers and runs the protocol under the world's lock until its own
// operation has finished, then hands over to another waiter. It spins a little, yields the core
// a few times, and then sleeps in the kernel on the one set that holds
// everything that can wake this rank. When nobody waits, the keeper (keeper.go)
// sleeps on the same set.
type progress struct {
	leader  leader
	asleep  bool      // the leader is in the kernel
	parked  []*waiter // waiters that do not lead
	waiters []*waiter // free ones
	anyOfs  []*anyOf  // free ones
	probers []*waiter // of parked callers whose condition is not an op
	calls   uint64    // of the API, so that the keeper can tell whether the program communicates
	beside  []Counter // of calls that communicate without messages (CountsCalls)
	watched int       // ops whose Done channel somebody holds

	polls   uint
	sweeps  uint // polls of all providers
	taken   uint // receives that could be taken past the providers' Poll
	busiest int  // provider that had something last

	set     *sleepSet         // nil with a sleeper
	sleeper transport.Sleeper // nil with a set

	crowded  bool          // there are more ranks than cores here
	couples  bool          // likewise, but no core has more than two
	home     osyield.Home  // where this rank should run
	spinTime time.Duration // at present
	pause    osyield.Pause // between two polls in vain, where the peer that is waited for has none of its own (pass)
	keeper   keeper
}

type leader uint8

const (
	leaderNone   leader = iota
	leaderCaller        // a waiting caller
	leaderKeeper        // the keeper, awake
	leaderAsleep        // the keeper, asleep in the kernel: callers may take over
)

// condition is what a caller waits for. It is looked at with the lock held.
type condition interface {
	met() bool
	// watch sets or (nil) removes the waiter to be signalled.
	watch(w *waiter)
}

func (o *op) met() bool { return o.over() }

func (o *op) watch(w *waiter) { o.waiter, o.special = w, true }

// anyOf is met when one of the requests has finished.
type anyOf struct {
	rs []Request
	at int
}

// anyOf gets a condition; keepAnyOf takes it back. The lock is held.
func (e *engine) anyOf(rs []Request) *anyOf {
	n := len(e.anyOfs)
	if n == 0 {
		return &anyOf{rs: rs, at: -1}
	}
	a := e.anyOfs[n-1]
	e.anyOfs = e.anyOfs[:n-1]
	*a = anyOf{rs: rs, at: -1}
	return a
}

func (e *engine) keepAnyOf(a *anyOf) {
	a.rs = nil
	e.anyOfs = append(e.anyOfs, a)
}

func (a *anyOf) met() bool {
	for i, r := range a.rs {
		if r.o != nil && (r.spent() || r.o.over()) {
			a.at = i
			return true
		}
	}
	return false
}

func (a *anyOf) watch(w *waiter) {
	for _, r := range a.rs {
		if r.o != nil && r.o.gen == r.gen {
			r.o.watch(w)
		}
	}
}

// waiter is how a caller that does not lead is woken.
type waiter struct{ c chan struct{} }

func (w *waiter) signal() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// await blocks until cond is met or ctx ends, with the lock held on entry and
// exit. The error is ctx's cause.
func (e *engine) await(ctx context.Context, cond condition) error {
	for !cond.met() {
		if e.closed || e.leader == leaderCaller || e.leader == leaderKeeper || e.leader == leaderAsleep && e.sleeper != nil {
			e.park(ctx, cond)
			if met := cond.met(); met || ctx.Err() != nil {
				e.handOver() // the signal may have been an offer to lead
				if met {
					return nil
				}
				return context.Cause(ctx)
			}
			continue
		}
		e.takeLead()
		e.lead(ctx, cond)
		e.leader = leaderNone
		e.handOver()
		if !cond.met() && !e.closed {
			return context.Cause(ctx)
		}
	}
	e.handOver() // a signal that came together with the outcome may have been an offer to lead
	return nil
}

// takeLead makes the caller the leader. If the keeper sleeps it is woken, but not waited for: with the providers disarmed
// nothing that arrives would wake it.
func (e *engine) takeLead() {
	if e.leader == leaderAsleep {
		e.asleep = false
		e.disarm()
		e.set.ring()
	}
	e.leader = leaderCaller
}

// park waits for a signal while somebody else leads.
func (e *engine) park(ctx context.Context, cond condition) {
	var w *waiter
	if n := len(e.waiters); n > 0 {
		w = e.waiters[n-1]
		e.waiters = e.waiters[:n-1]
	} else {
		w = &waiter{c: make(chan struct{}, 1)}
	}
	cond.watch(w)
	e.parked = append(e.parked, w)
	if e.leader == leaderAsleep && e.sleeper != nil {
		e.sleeper.Wake()
	}
	e.mu.Unlock()
	select {
	case <-w.c:
	case <-ctx.Done():
	}
	e.mu.Lock()
	cond.watch(nil)
	if i := slices.Index(e.parked, w); i >= 0 {
		e.parked = slices.Delete(e.parked, i, i+1)
	}
	select {
	case <-w.c:
	default:
	}
	e.waiters = append(e.waiters, w)
}

// handOver lets a parked waiter lead, or tells the keeper that nobody does.
func (e *engine) handOver() {
	if e.leader != leaderNone {
		return
	}
	for len(e.reported) > 0 && !e.closed {
		e.leader = leaderCaller
		e.believe()
		e.leader = leaderNone
	}
	if e.closed { // nobody is to lead any more, and Close waits until nobody does
		e.wakeParked()
	} else if n := len(e.parked); n > 0 {
		e.parked[n-1].signal()
		return
	}
	e.keeper.release()
}

// wakeParked has all who wait look at their condition again.
func (e *engine) wakeParked() {
	for _, w := range e.parked {
		w.signal()
	}
}

// lead polls until cond is met or ctx has ended.
func (e *engine) lead(ctx context.Context, cond condition) {
	if e.sleeper != nil {
		e.leadAsleep(ctx, cond)
		return
	}
	var (
		vain = e.spell(cond)
		stop func() bool
	)
	for {
		n := e.poll()
		if len(e.reported) > 0 {
			e.believe()
		}
		if cond.met() || e.closed {
			break
		}
		if e.mu.Wanted() {
			e.stepAside()
		}
		if n > 0 {
			vain.polls = 0
			if e.polls%endPolls == 0 && ctx.Err() != nil { // what comes is for others, and may go on coming
				break
			}
			continue
		}
		if !e.spunOut(&vain) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		e.spinTime = max(e.spinTime/2, spinAlone)
		vain.polls = 0
		if e.yieldSome(cond) {
			continue
		}
		if stop == nil && ctx.Done() != nil {
			stop = context.AfterFunc(ctx, e.wake)
		}
		e.sleep(ctx)
	}
	if stop != nil {
		stop()
	}
}

// leadAsleep is lead over a provider that owns time: it sleeps at once.
func (e *engine) leadAsleep(ctx context.Context, cond condition) {
	var stop func() bool
	for {
		n := e.poll()
		if len(e.reported) > 0 {
			e.believe()
		}
		if cond.met() || e.closed || ctx.Err() != nil {
			break
		}
		if n > 0 {
			continue
		}
		if stop == nil && ctx.Done() != nil {
			stop = context.AfterFunc(ctx, e.sleeper.Wake)
		}
		e.asleep = true
		e.sleeper.Sleep(&e.mu, time.Time{})
		e.asleep = false
	}
	if stop != nil {
		stop()
	}
}

// sleep arms every provider and blocks in the kernel until something arrives,
// somebody wakes this rank, or ctx's deadline passes.
func (e *engine) sleep(ctx context.Context) {
	// The ring that tells of the end of ctx may have been the keeper's to take.
	if ctx.Err() == nil && e.arm() {
		timeout := -1
		if at, ok := ctx.Deadline(); ok {
			timeout = max(0, int(time.Until(at)/time.Millisecond)+1)
		}
		e.asleep = true
		e.mu.Unlock()
		e.set.wait(timeout)
		e.mu.Lock()
		e.asleep = false
		if e.keeper.asleep {
			e.set.ring() // the ring that ended this sleep may have been the keeper's (takeLead)
		}
	}
	e.disarm()
}

// arm reports whether the rank may sleep.
func (e *engine) arm() bool {
	quiet := !e.closed && len(e.reported) == 0
	for _, p := range e.providers {
		if p.Arm() {
			quiet = false
		}
	}
	return quiet
}

func (e *engine) disarm() {
	for _, p := range e.providers {
		p.Disarm()
	}
}

// wake ends the leader's sleep, from any goroutine.
func (e *engine) wake() {
	if e.sleeper != nil {
		e.sleeper.Wake()
		return
	}
	e.set.ring()
}

// rouse wakes whoever sleeps for this rank, a leader or the keeper, since the caller has given a
// provider work, such as a pull. Nothing would arrive from outside to tell the sleeper of it.
func (e *engine) rouse() {
	if e.asleep {
		e.wake()
	}
}

// nudge wakes a sleeping leader whose condition may have been met by somebody else.
func (e *engine) nudge() {
	if e.asleep && e.leader == leaderCaller {
		e.wake()
	}
}
