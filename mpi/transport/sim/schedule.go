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

// Virtual time is a discrete-event simulation. Each rank has a clock of its
// own, which its calls and Compute move on; the fabric has a queue of events.
// A rank runs until it sleeps; then the earliest event happens. Events are a message's
// entering its node's adapter, its reaching the other node's, and a rank's
// going on, so adapters serve messages in the order of time even though a rank that
// computes has its clock ahead of the others'. Ranks are coroutines (iter.Pull): a
// change from one to another costs about a fifth of a hand-over between goroutines.

// Task is a rank as the schedule sees it.
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

// adapter is a node's network adapter.
type adapter struct{ send, recv lane }

// lane is one direction of an adapter: when it will have served all that has
// come to it so far, and when all short messages.
type lane struct{ free, shortFree int64 }

// packetBytes is the longest payload that passes those of other ranks: one
// packet of InfiniBand's largest MTU. Adapters serve their queue pairs in turn,
// packet by packet, so what fits one does not wait for all that lies in other queues.
const packetBytes = 4096

// serve is when a message that holds the lane for some time gets its turn.
func (l *lane) serve(at, hold int64, queued bool) (start int64) {
	if queued {
		start = max(at, l.free)
		l.free = start + hold
		return start
	}
	start = max(at, l.shortFree)
	l.shortFree = start + hold
	l.free = max(l.free+hold, start+hold) // the long ones wait for it instead
	return start
}

// Stats counts what a virtual-time fabric has done.
type Stats struct {
	Events   uint64 // of the simulation
	Messages uint64 // accepted by Send and SendFrom
	Bytes    uint64 // of their payloads
	Resumes  uint64 // of ranks
}

// pollTime is what a fruitless poll costs once a rank polls without
// sleeping, so that programs that test in a loop make time pass.
const (
	pollTime   = 100 // ns
	freeBarren = 16
	heedless   = 1000 // sleeps that end at once, without a poll that finds something
)

var errUnwind = errors.New("sim: rank taken down")

// ErrStuck: the ranks wait for messages that nobody will send.
var ErrStuck = errors.New("sim: ranks wait for what will never come")

func newSchedule(f *Fabric) *schedule {
	nodes := f.cfg.Network.NodeOf(f.cfg.Ranks-1) + 1
	return &schedule{f: f, nodes: make([]adapter, nodes)}
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

// pause makes a rank that does not run go on at a time, unless it will sooner.
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
		panic(errUnwind) // it does not look at what it is told
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

// transmit puts a message on its way.
func (s *schedule) transmit(m *message) {
	p := m.from
	n := s.f.cfg.Network
	link := n.Between(p.rank, m.to.rank)
	at := max(p.clock, s.now, m.due)
	if m.hangUp == nil {
		s.stats.Messages++
		s.stats.Bytes += uint64(m.size)
		p.clock = at + int64(link.Overhead)
		if link == &n.Node && !m.lent {
			p.clock += int64(link.Transfer(m.size))
		}
		at = p.clock
	}
	if link == &n.Node {
		m.due = at + int64(link.Latency)
		m.to.accept(m)
		return
	}
	s.push(event{at: at, kind: eventInject, sent: m})
}

// request puts a pull's request on its way to the owner of the memory.
func (s *schedule) request(x *pull) {
	p := x.reader
	n := s.f.cfg.Network
	link := n.Between(p.rank, x.owner.rank)
	p.clock = max(p.clock, s.now) + int64(link.Overhead)
	s.stats.Messages++
	s.stats.Bytes += uint64(len(x.dst))
	at := p.clock + int64(link.Latency)
	if link == &n.Node {
		p.tell(at, &note{pull: x})
		return
	}
	s.push(event{at: at, kind: eventInject, pull: x})
}

// Copying inside a node is the reader's own work, in this many chunks at most
// and none shorter than copyChunk; between them it looks at what has arrived.
const (
	copyChunks = 16
	copyChunk  = 32 << 10
)

// chargeCopy moves the reader's clock on by the next chunk of a pull, and
// returns the chunk's length. It reports false if other ranks have yet to do what they do before
// the reader's time: then they have done it, and what has arrived goes first.
func (s *schedule) chargeCopy(x *pull) (length int, ok bool) {
	n := s.f.cfg.Network
	p := x.reader
	left := len(x.dst) - x.offset
	if n.Between(p.rank, x.owner.rank) != &n.Node {
		return left, true
	}
	if p.running && !p.unwound && len(s.queue) > 0 && s.queue[0].at < p.clock {
		s.suspend(p, p.clock)
		return 0, false
	}
	length = min(left, max(copyChunk, len(x.dst)/copyChunks))
	p.clock = max(p.clock, s.now) + int64(n.Node.Transfer(length))
	return length, true
}

// inject lets a payload enter the network at its node's adapter.
func (s *schedule) inject(e event) {
	from, _, size := e.route()
	wire := &s.f.cfg.Network.Wire
	a := &s.nodes[s.f.cfg.Network.NodeOf(from)]
	start := a.send.serve(e.at, wire.hold(size), e.queued())
	s.push(event{at: start + int64(wire.Latency), kind: eventReach, sent: e.sent, pull: e.pull})
}

// reach lets a payload enter the adapter of the node it goes to.
func (s *schedule) reach(e event) {
	_, to, size := e.route()
	wire := &s.f.cfg.Network.Wire
	a := &s.nodes[s.f.cfg.Network.NodeOf(to)]
	// It is served while it comes in: its last byte is through one transfer after its first.
	hold := wire.hold(size)
	start := a.recv.serve(e.at+int64(wire.Transfer(size))-hold, hold, e.queued())
	done := start + hold
	if e.pull != nil {
		e.pull.reader.tell(done, &note{pull: e.pull})
		return
	}
	m := e.sent
	m.due = done
	if m.lent && m.hangUp == nil {
		m.landed(s.f.cfg.SizesOnly, done+int64(wire.Latency))
	}
	m.to.accept(m)
}

// landed takes lent memory into the fabric, since the adapter has read it,
// and completes the send at a time.
func (m *message) landed(sizesOnly bool, acknowledged int64) {
	m.to.mu.Lock()
	open := m.state == lendingIdle
	m.to.mu.Unlock()
	if open {
		m.detach(sizesOnly)
		m.from.tell(acknowledged, &note{op: m.op})
	}
}

// acknowledged is when the sender knows that lent memory was read at a time.
func (s *schedule) acknowledged(m *message, at int64) int64 {
	return at + int64(s.f.cfg.Network.Between(m.from.rank, m.to.rank).Latency)
}

// chargeReceive moves the receiver's clock on by what a message costs it.
func (s *schedule) chargeReceive(m *message) {
	n := s.f.cfg.Network
	link := n.Between(m.from.rank, m.to.rank)
	p := m.to
	p.clock = max(p.clock, m.due) + int64(link.Overhead)
	if link == &n.Node {
		p.clock += int64(link.Transfer(m.size))
	}
}

func (s *schedule) push(e event) {
	s.seq++
	e.seq = s.seq
	s.queue.push(e)
}
