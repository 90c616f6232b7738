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
	probers []*waiter // of parked callers whose condition is not an op
	calls   uint64    // of the API, so that the keeper can tell whether the program communicates
	watched int       // ops whose Done channel somebody holds

	polls   uint
	busiest int // provider that had something last

	set     *sleepSet         // nil with a sleeper
	sleeper transport.Sleeper // nil with a set

	crowded  bool          // there are more ranks than cores here
	spinTime time.Duration // at present
	keeper   keeper
}

type leader uint8

const (
	leaderNone   leader = iota
	leaderCaller        // a waiting caller
	leaderKeeper        // the keeper, awake
	leaderAsleep        // the keeper, asleep in the kernel: callers may take over
)

const (
	// A rank spins this long before it yields when every rank of the host has a
	// core, and the shorter time when there are more ranks than cores.
	spinAlone   = 50 * time.Microsecond
	spinCrowded = 1 * time.Microsecond
	// Where every rank has a core and a yield takes longer than dearYield all the same, another
	// program got it, for a time slice. Each further yield would cost one more: the
	// rank spins for spinBesides instead, and half as long every time that was in vain.
	dearYield   = 200 * time.Microsecond
	spinBesides = 1 * time.Millisecond
	// Then it yields, at least so often and at least so long. Two ranks that
	// answer each other must not both sleep: each would wait for the other's wake-up, which takes
	// 45 µs on a virtual machine, and neither would find the other awake again.
	yields       = 10
	yieldAlone   = 250 * time.Microsecond
	yieldCrowded = 20 * time.Microsecond

	clockPolls  = 16 // polls between two looks at the clock
	glancePolls = 64
)

// condition is what a caller waits for. It is looked at with the lock held.
type condition interface {
	met() bool
	// watch sets or (nil) removes the waiter to be signalled.
	watch(w *waiter)
}

func (o *op) met() bool       { return o.phase == phaseFinished }
func (o *op) watch(w *waiter) { o.waiter = w }

// anyOf is met when one of the requests has finished.
type anyOf struct {
	rs []Request
	at int
}

func (a *anyOf) met() bool {
	for i, r := range a.rs {
		if r.o != nil && (r.o.gen != r.gen || r.o.finished()) {
			a.at = i
			return true
		}
	}
	return false
}

func (a *anyOf) watch(w *waiter) {
	for _, r := range a.rs {
		if r.o != nil && r.o.gen == r.gen {
			r.o.waiter = w
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
		if e.leader == leaderCaller || e.leader == leaderKeeper || e.leader == leaderAsleep && e.sleeper != nil {
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
		if !cond.met() {
			return context.Cause(ctx)
		}
	}
	e.handOver() // a signal that came together with the outcome may have been an offer to lead
	return nil
}

// takeLead makes the caller the leader. A keeper that sleeps is woken, so
// that it does not sleep on unarmed.
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
	e.unlock()
	select {
	case <-w.c:
	case <-ctx.Done():
	}
	e.lock()
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
	if n := len(e.parked); n > 0 {
		e.parked[n-1].signal()
		return
	}
	e.keeper.release()
}

// lead polls until cond is met or ctx has ended.
func (e *engine) lead(ctx context.Context, cond condition) {
	if e.sleeper != nil {
		e.leadAsleep(ctx, cond)
		return
	}
	var (
		idle  int
		since time.Time
		stop  func() bool
	)
	for {
		n := e.poll()
		if cond.met() {
			break
		}
		if e.contended.Load() > 0 {
			e.stepAside()
		}
		if n > 0 {
			idle = 0
			continue
		}
		if idle++; idle%clockPolls != 0 {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		if idle == clockPolls {
			since = time.Now()
			continue
		}
		if time.Since(since) < e.spinTime {
			continue
		}
		if !e.crowded {
			e.spinTime = max(e.spinTime/2, spinAlone)
		}
		if e.yieldSome(cond) {
			idle = 0
			continue
		}
		if stop == nil && ctx.Done() != nil {
			stop = context.AfterFunc(ctx, e.wake)
		}
		e.sleep(ctx)
		idle = 0
	}
	if stop != nil {
		stop()
	}
}

// yieldSome gives the core to other ranks for a while and reports whether
// something happened meanwhile.
func (e *engine) yieldSome(cond condition) bool {
	most := yieldAlone
	if e.crowded {
		most = yieldCrowded
	}
	start := time.Now()
	now := start
	for i := 0; i < yields || now.Sub(start) < most; i++ {
		e.unlock()
		osyield.Yield()
		e.lock()
		if e.pollAll() > 0 || cond.met() {
			return true
		}
		before := now
		now = time.Now()
		if !e.crowded && now.Sub(before) > dearYield {
			e.spinTime = spinBesides
			return e.spin(cond)
		}
	}
	return false
}

// spin polls for spinTime, or until something happens, which it reports.
func (e *engine) spin(cond condition) bool {
	for start := time.Now(); time.Since(start) < e.spinTime; {
		for range clockPolls {
			if e.poll() > 0 || cond.met() {
				return true
			}
		}
		if e.contended.Load() > 0 {
			e.stepAside()
		}
	}
	return false
}

// stepAside lets goroutines that want the lock have it.
func (e *engine) stepAside() {
	e.unlock()
	for i := 0; i < 100 && e.contended.Load() > 0; i++ {
		osyield.Yield()
	}
	e.mu.Lock()
}

// leadAsleep is lead over a provider that owns time: it sleeps at once.
func (e *engine) leadAsleep(ctx context.Context, cond condition) {
	var stop func() bool
	for {
		n := e.poll()
		if cond.met() || ctx.Err() != nil {
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
	if e.arm() {
		timeout := -1
		if at, ok := ctx.Deadline(); ok {
			timeout = max(0, int(time.Until(at)/time.Millisecond)+1)
		}
		e.asleep = true
		e.unlock()
		e.set.wait(timeout)
		e.lock()
		e.asleep = false
		if e.keeper.asleep {
			e.set.ring() // it may have been to get the keeper out of the way
		}
	}
	e.disarm()
}

// arm reports whether the rank may sleep.
func (e *engine) arm() bool {
	quiet := true
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

// pollOthers is how often the providers are looked at that had nothing last.
const pollOthers = 8

// poll makes what progress can be made now by the provider that had something
// last, and every now and then by all. A socket costs a system call to look at, and
// memory should not have to wait for that.
func (e *engine) poll() int {
	if e.polls++; e.polls%pollOthers == 0 || len(e.providers) == 0 {
		return e.pollAll()
	}
	n := e.providers[e.busiest].Poll(e)
	if len(e.backlog) > 0 || len(e.unread) > 0 {
		n += e.flush()
	}
	return n
}

// pollAll makes what progress can be made now.
func (e *engine) pollAll() int {
	n := 0
	for i, p := range e.providers {
		if m := p.Poll(e); m > 0 {
			n += m
			e.busiest = i
		}
	}
	if len(e.backlog) > 0 || len(e.unread) > 0 {
		n += e.flush()
	}
	return n
}

// glance is the beginning of a wait: it polls for about as long as an answer from a
// rank of this host takes, so that the rest of waiting is not paid for by those who
// hardly wait.
func (e *engine) glance(o *op) {
	if e.leader != leaderNone || e.sleeper != nil || o.phase == phaseFinished {
		return
	}
	e.leader = leaderCaller
	for i := 0; i < glancePolls && e.contended.Load() == 0; i++ {
		if e.poll() > 0 && o.phase == phaseFinished {
			break
		}
	}
	e.leader = leaderNone
	if o.phase == phaseFinished {
		e.handOver()
	}
}

// pollOnce polls unless somebody else is polling.
func (e *engine) pollOnce() {
	switch e.leader {
	case leaderCaller, leaderKeeper:
		return
	case leaderAsleep:
		if e.sleeper != nil {
			return
		}
	}
	e.takeLead()
	e.pollAll()
	e.leader = leaderNone
	e.handOver()
}

// Outside implements transport.Sink.
func (e *engine) Outside(work func()) {
	e.unlock()
	work()
	e.lock()
}

// wake ends the leader's sleep, from any goroutine.
func (e *engine) wake() {
	if e.sleeper != nil {
		e.sleeper.Wake()
		return
	}
	e.set.ring()
}

// nudge wakes a sleeping leader whose condition may have been met by somebody else.
func (e *engine) nudge() {
	if e.asleep && e.leader == leaderCaller {
		e.wake()
	}
}
