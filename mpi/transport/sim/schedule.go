package sim

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Virtual time is a discrete-event simulation. Each rank has a clock of its own, which its calls and Compute move on; the
// fabric has a queue of events. A rank runs until it sleeps; then the earliest event happens: a message enters its node's
// adapter, it reaches the other node's, or a rank goes on. So adapters serve messages in the order of time even though a rank
// that computes has its clock ahead of the others'. Ranks are coroutines (iter.Pull): a change from one to another costs
// about a fifth of a hand-over between goroutines.

// task is a rank as the schedule sees it.
type task struct {
	clock    int64 // nanoseconds
	running  bool
	sleeping bool
	wakeAt   int64  // while sleeping: when it will go on
	pledge   uint32 // the wake event that counts
	yield    func(struct{}) bool
	next     func() (struct{}, bool)
	stop     func()
	finished bool
	unwound  bool // its coroutine is being taken down
}

type schedule struct {
	f      *Fabric
	now    int64
	seq    uint64
	queue  timeline
	nodes  []adapter
	active bool // inside Run

	wakeMu sync.Mutex // Wake may come from any goroutine
	woken  []*Provider
	wakes  atomic.Bool

	stats Stats
}

// packetBytes is the longest payload that passes those of other ranks: one
// packet of InfiniBand's largest MTU. Adapters serve their queue pairs in turn,
// packet by packet, so what fits one does not wait for all that lies in other queues.
const packetBytes = 4096

// Stats counts what a virtual-time fabric has done.
type Stats struct {
	Events   uint64 // of the simulation
	Messages uint64 // accepted by Send and SendFrom
	Bytes    uint64 // of their payloads
	Resumes  uint64 // of ranks
}

// pollTime is what a poll without an event costs after freeBarren of them without a sleep, so that programs that test in a
// loop make time pass.
const (
	pollTime   = 100 // ns
	freeBarren = 16
	heedless   = 1000 // sleeps that end at once, without a poll that finds something
)

var errUnwind = errors.New("sim: rank taken down")

// ErrStuck: the ranks wait for messages that nobody will send.
var ErrStuck = errors.New("sim: ranks wait for what will never come")

func newSchedule(f *Fabric) *schedule {
	return &schedule{f: f, nodes: make([]adapter, f.cfg.Network.NodesOf(f.cfg.Ranks))}
}

// Run calls main once for each rank and returns when all have returned.
//
// In virtual time the ranks run one at a time, as coroutines of the caller,
// and a rank's provider may be used only by the goroutine in which its main is
// called. When every rank sleeps and nothing is under way, or ctx ends, all that wait
// are killed: their operations fail, and the error (ErrStuck or ctx's cause)
// names them.
//
// In real time main runs on a goroutine for each rank, and ctx is not looked at.
func (f *Fabric) Run(ctx context.Context, main func(rank int)) error {
	if f.err != nil {
		return f.err
	}
	if f.virtual != nil {
		return f.virtual.run(ctx, main)
	}
	var all sync.WaitGroup
	for rank := range f.ranks {
		all.Go(func() { main(rank) })
	}
	all.Wait()
	return nil
}

// Elapsed is the fabric's time: the largest of the ranks' clocks.
func (f *Fabric) Elapsed() time.Duration {
	if f.virtual == nil {
		return time.Since(f.start)
	}
	last := f.virtual.now
	for i := range f.ranks {
		last = max(last, f.ranks[i].clock)
	}
	return time.Duration(last)
}

// Stats counts what has happened so far in virtual time. It must not be called while Run runs.
func (f *Fabric) Stats() Stats {
	if f.virtual == nil {
		return Stats{}
	}
	return f.virtual.stats
}

// Compute lets time pass on this rank's clock: arithmetic that a simulation
// is charged for. In real time it does nothing, the time has passed already.
func (p *Provider) Compute(d time.Duration) {
	if p.fabric.virtual != nil && d > 0 {
		p.clock += int64(d)
	}
}

func (s *schedule) run(ctx context.Context, main func(rank int)) error {
	if s.active {
		return fmt.Errorf("%w: Run inside Run", ErrConfig)
	}
	s.active = true
	left := 0
	defer func() {
		s.active = false
		for i := range s.f.ranks {
			if p := &s.f.ranks[i]; p.next != nil && !p.finished {
				p.unwound = true
				p.stop()
			}
		}
	}()
	for i := range s.f.ranks {
		p := &s.f.ranks[i]
		p.finished, p.unwound = false, false
		p.next, p.stop = iter.Pull(s.coroutine(p, main))
		s.pause(p, max(p.clock, s.now))
		left++
	}
	var failure error
	for left > 0 {
		if s.wakes.Load() {
			s.heedWakes()
		}
		if s.stats.Events&1023 == 0 && failure == nil && ctx.Err() != nil {
			failure = s.condemn(context.Cause(ctx))
		}
		if len(s.queue) == 0 {
			if failure != nil {
				return failure
			}
			failure = s.condemn(ErrStuck)
			continue
		}
		e := s.queue.pop()
		s.now = max(s.now, e.at)
		s.stats.Events++
		switch e.kind {
		case eventResume:
			if p := e.rank; p.sleeping && p.pledge == e.pledge && s.resume(p, e.at) {
				left--
			}
		case eventInject:
			s.inject(e)
		case eventReach:
			s.reach(e)
		}
	}
	return failure
}

// coroutine is what a rank runs.
func (s *schedule) coroutine(p *Provider, main func(int)) iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		p.yield = yield
		defer func() {
			switch r := recover(); {
			case r == nil:
			case r == any(errUnwind):
			default:
				panic(fmt.Sprintf("rank %d: %v\n%s", p.rank, r, debug.Stack()))
			}
		}()
		main(p.rank)
	}
}

// resume lets a rank run until it sleeps, and reports whether it has returned.
func (s *schedule) resume(p *Provider, at int64) (finished bool) {
	p.sleeping, p.running = false, true
	p.clock = max(p.clock, at)
	s.stats.Resumes++
	_, more := p.next()
	p.running, p.finished = false, !more
	return !more
}

// condemn fails the operations of all ranks that have not returned.
func (s *schedule) condemn(cause error) error {
	var waiting []int
	for i := range s.f.ranks {
		if p := &s.f.ranks[i]; !p.finished {
			waiting = append(waiting, i)
			p.die(cause)
		}
	}
	shown := waiting[:min(len(waiting), 16)]
	more := ""
	if n := len(waiting) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("after %v of virtual time, ranks %v%s: %w", time.Duration(s.now), shown, more, cause)
}

// pause has a rank that does not run go on at a time, unless notify has it go on sooner.
func (s *schedule) pause(p *Provider, at int64) {
	p.sleeping, p.wakeAt = true, at
	p.pledge++
	if at != never {
		s.push(event{at: at, kind: eventResume, rank: p, pledge: p.pledge})
	}
}

// notify wakes a sleeping rank for something that is due.
func (s *schedule) notify(p *Provider, due int64) {
	if !p.sleeping {
		return
	}
	if at := max(due, p.clock, s.now); at < p.wakeAt {
		s.pause(p, at)
	}
}

// wake is Provider.Wake: from any goroutine.
func (s *schedule) wake(p *Provider) {
	s.wakeMu.Lock()
	s.woken = append(s.woken, p)
	s.wakeMu.Unlock()
	s.wakes.Store(true)
}

func (s *schedule) heedWakes() {
	s.wakeMu.Lock()
	woken := s.woken
	s.woken = nil
	s.wakes.Store(false)
	s.wakeMu.Unlock()
	for _, p := range woken {
		s.notify(p, s.now)
	}
}

// sleep is Provider.Sleep.
func (s *schedule) sleep(p *Provider, lock sync.Locker, deadline time.Time) {
	if p.unwound {
		panic(errUnwind)
	}
	if !p.running {
		panic(fmt.Sprintf("sim: rank %d sleeps in virtual time on a goroutine that is not Fabric.Run's", p.rank))
	}
	p.mu.Lock()
	at := p.nextDue()
	p.mu.Unlock()
	if !deadline.IsZero() {
		at = min(at, deadline.UnixNano())
	}
	if p.barren++; at <= p.clock && p.barren < heedless {
		return
	}
	lock.Unlock()
	defer lock.Lock()
	if at <= p.clock && p.dead.Load() != nil {
		panic(errUnwind) // it ignores that its operations fail
	}
	s.suspend(p, max(at, p.clock))
	p.barren = 0
}

// suspend gives the processor away until a time or a notification.
func (s *schedule) suspend(p *Provider, at int64) {
	s.pause(p, at)
	if !p.yield(struct{}{}) {
		panic(errUnwind)
	}
}

// polled is told of each Poll.
func (s *schedule) polled(p *Provider, events int) {
	if events > 0 || !p.running || p.unwound {
		p.barren = 0
		return
	}
	if p.barren++; p.barren > freeBarren {
		p.mu.Lock()
		at := min(p.nextDue(), p.clock+pollTime)
		p.mu.Unlock()
		s.suspend(p, max(at, p.clock))
	}
}

// Copying inside a node is the reader's own work, in this many chunks at most
// and none shorter than copyChunk; between them it looks at what has arrived.
const (
	copyChunks = 16
	copyChunk  = 32 << 10
)
