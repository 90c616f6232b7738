package mpi

import (
	"time"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
)

// Looking for messages: by which providers, how long before the core is given
// away, and for how long then.

const (
	// A rank spins this long before it yields when every rank of the host has a
	// core; where there are more ranks than cores it yields after one or a few looks (looks).
	spinAlone = 50 * time.Microsecond
	// Where every rank has a core, a yield that takes longer than dearYield has given the core to another
	// program, for a time slice. Each further yield would cost one more time slice. So the
	// rank spins for spinBesides instead, and for half as long after each time that it spun in vain.
	dearYield   = 200 * time.Microsecond
	spinBesides = 1 * time.Millisecond
	// After spinning, a rank yields at least this often and at least this long. Two ranks that
	// answer each other must not both sleep: each would wait for the other's wake-up, which takes
	// 45 µs on a virtual machine, and neither would find the other awake again.
	yields       = 10
	yieldAlone   = 250 * time.Microsecond
	yieldCrowded = 1 * time.Millisecond
	// But it yields no longer than this, since other programs want the core. In a crowd the time is looked at after every
	// eighth yield only.
	yieldMost = 5 * time.Millisecond

	clockPolls  = 16 // polls between two looks at the clock
	endPolls    = 64 // polls that find something, between two looks at the caller's context
	glancePolls = 64

	// looksElsewhere is looks for a rank that runs on another core.
	looksElsewhere = 8
)

// pollOthers: one poll in this many is of all providers, instead of the one that had something last.
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

// pollAll makes what progress can be made now by all providers. Most times it passes over those that have no peer yet:
// after a switch from another rank each costs some cache lines.
func (e *engine) pollAll() int {
	e.sweeps++
	n := 0
	for i, p := range e.providers {
		if !e.serving[i] && i != e.busiest && e.sweeps%pollOthers != 0 {
			continue
		}
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

// pollOnce polls unless somebody else is polling.
func (e *engine) pollOnce() {
	switch {
	case e.closed, e.leader == leaderCaller, e.leader == leaderKeeper, e.leader == leaderAsleep && e.sleeper != nil:
		return
	}
	e.takeLead()
	e.pollAll()
	e.leader = leaderNone
	e.handOver()
}

// spell is a stretch of polling in vain.
type spell struct {
	peer  *peer // that is waited for; nil if it is not known, or several
	looks int   // polls in vain, in a crowd, before the core is given away
	polls int
	since time.Time
}

// spell is one of waiting for a condition.
func (e *engine) spell(cond condition) spell {
	p := e.awaited(cond)
	return spell{peer: p, looks: e.looks(p)}
}

// awaited is the peer that an operation waits for; nil if that is not one peer, or not one that is known yet.
func (e *engine) awaited(cond condition) *peer {
	o, ok := cond.(*op)
	if !ok {
		return nil
	}
	rank := o.peer
	if o.kind == opRecv && rank < 0 {
		rank = o.env.source
	}
	if rank < 0 {
		return nil
	}
	return e.peers[rank]
}

// looks is how often a caller that waits for a peer polls in vain, in a crowd, before it gives the core away. Mostly that is
// once, since the peer most likely waits for the core. Where at most two ranks share a core, a peer on another core is as
// likely to be running, and a few polls cost less than a switch.
func (e *engine) looks(p *peer) int {
	if e.couples && p != nil && p.elsewhere {
		return looksElsewhere
	}
	return 1
}

// pass lets the time pass between two polls of a caller that waits for a peer.
func (e *engine) pass(p *peer) {
	if p != nil && p.taker != nil {
		p.taker.Pass(p.rank)
	} else {
		e.pause.Pass()
	}
}

// spunOut counts one more poll in vain, and reports whether it is time to give the core away: in a crowd after some looks.
func (e *engine) spunOut(s *spell) bool {
	s.polls++
	if e.crowded && s.polls >= s.looks {
		return true
	}
	e.pass(s.peer)
	if e.crowded {
		return false
	}
	switch {
	case s.polls%clockPolls != 0:
		return false
	case s.polls == clockPolls:
		s.since = time.Now()
		return false
	}
	return time.Since(s.since) >= e.spinTime
}

// glance is the beginning of a wait: it polls for about as long as an answer from a rank of this host takes, so that
// short waits do not pay for what long ones need. Ranks that share cores do without: they wait for a switch anyway.
func (e *engine) glance(o *op) {
	if e.closed || e.leader != leaderNone || e.sleeper != nil || e.crowded || o.phase == phaseFinished {
		return
	}
	e.leader = leaderCaller
	peer := e.awaited(o)
	for i := 0; i < glancePolls && !e.mu.Wanted(); i++ {
		if e.poll() == 0 {
			e.pass(peer)
		} else if o.phase == phaseFinished {
			break
		}
	}
	e.leader = leaderNone
	if o.phase == phaseFinished || e.closed { // Close, begun amid a poll, waits for that
		e.handOver()
	}
}

// spin polls for spinTime, or until something happens, which it reports. It steps aside for goroutines that want the lock
// before it looks, never after: the caller sleeps next, and what others do while it is awake does not wake it.
func (e *engine) spin(cond condition) bool {
	peer := e.awaited(cond)
	for start := time.Now(); time.Since(start) < e.spinTime; {
		if e.mu.Wanted() {
			e.stepAside()
		}
		for range clockPolls {
			if e.poll() > 0 || cond.met() {
				return true
			}
			e.pass(peer)
		}
	}
	return false
}

// yieldSome gives the core to other ranks for a while and reports whether
// something happened meanwhile.
func (e *engine) yieldSome(cond condition) bool {
	most := yieldAlone
	if e.crowded {
		most = yieldCrowded
	}
	for w := (osyield.Wait{}); w.Yields < yields && w.Lasts < yieldMost || w.Lasts < most; {
		e.mu.Unlock()
		took := e.home.Yield(&w)
		e.mu.Lock()
		if e.pollAll() > 0 || cond.met() {
			return true
		}
		if took > dearYield {
			e.spinTime = spinBesides
			return e.spin(cond)
		}
	}
	return false
}

// stepAside lets goroutines that want the lock have it.
func (e *engine) stepAside() {
	e.mu.Unlock()
	for i := 0; i < 100 && e.mu.Wanted(); i++ {
		osyield.Yield()
	}
	e.mu.Lock()
}

// Outside implements transport.Sink.
func (e *engine) Outside(work func()) {
	e.mu.Unlock()
	work()
	e.mu.Lock()
}
