package mpi

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Loss is exact: what involves the lost rank fails and names it, all else
// goes on. Operations with it fail; so do AnySource receives on communicators
// that contain it, until acknowledged, and everything on the shadow
// communicators (collectives) that contain it. A rank whose own host lacks the resources for a connection
// declares itself lost to the others, not the peer. The words follow ULFM (Bland et al. 2013).

// sound reports whether operations may be started on c. Callers hold the lock.
func (c *Comm) sound() bool {
	return !c.revoked.Load() && (c.unacked == 0 || c.shadow != c)
}

// broken says why nothing may be started on c, or nil.
func (e *engine) broken(c *Comm) error {
	switch {
	case e.closed:
		return ErrClosed
	case c.freed.Load():
		return errFreed
	case c.revoked.Load():
		return ErrRevoked
	case c.unacked > 0 && c.shadow == c:
		return e.lastLoss(c)
	}
	return nil
}

// lastLoss is the newest loss among c's members. That of a rank which left early (goneEarly) counts only if there is no
// other: mostly it is a consequence of another loss.
func (e *engine) lastLoss(c *Comm) error {
	var left error = ErrPeerLost
	for _, l := range slices.Backward(e.losses) {
		switch {
		case c.RankOf(l.rank) < 0:
		case l.err.why != goneEarly:
			return l.err
		case left == ErrPeerLost:
			left = l.err
		}
	}
	return left
}

// gone is the error of an operation whose outcome was transport.Gone.
func (e *engine) gone(p *peer) error {
	if p.lost != nil {
		return p.lost
	}
	return ErrClosed // this world is closing (outcome), and the peer was first
}

// outcome is what a provider's answer means for a peer. A provider that takes nothing more for the peer reports the reason
// at the next Poll. Until then messages wait as if the provider were full, so that they end with the reason.
func (e *engine) outcome(p *peer, out transport.Outcome) transport.Outcome {
	if out != transport.Gone || p.lost != nil || e.closing {
		return out
	}
	e.rouse()
	return transport.Full
}

// Lost implements transport.Sink: a connection broke.
func (e *engine) Lost(rank int, err error) {
	if e.closing && (e.stays == nil || !e.stays(rank)) {
		return
	}
	e.giveUpOn(&lostError{rank: rank, why: fmt.Sprint(err), ours: shortage(err)})
}

// shortage reports whether err means that this host has run out of something. A connection that fails for such a reason
// says nothing of the peer.
func shortage(err error) bool {
	for _, why := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ENOSPC} {
		if errors.Is(err, why) {
			return true
		}
	}
	return false
}

// peerLost hears from outside (the bootstrap tree) that a rank is lost. What the rank sent before has arrived or is in the
// provider, and is delivered first. Whoever leads does so and then believes the report (believe), since two goroutines
// must not be inside a provider.
func (e *engine) peerLost(rank int, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.reported = append(e.reported, report{rank, why})
	e.pollOnce()
	e.rouse()
}

// lastPolls bounds how long the messages of a rank reported lost are looked for.
const lastPolls = 64

// believe loses the ranks that were reported lost. The caller leads.
func (e *engine) believe() {
	if e.closed {
		return
	}
	reports := e.reported
	e.reported = nil // the lock may be given up meanwhile, and there may be more
	for i := 0; i < lastPolls && e.pollAll() > 0; i++ {
	}
	for _, r := range reports {
		e.lose(r.rank, r.why)
	}
}

// lose marks a rank as lost and fails what depends on it. The lock is held.
func (e *engine) lose(rank int, why string) { e.giveUpOn(&lostError{rank: rank, why: why}) }

func (e *engine) giveUpOn(err *lostError) {
	rank := err.rank
	p := e.peer(rank)
	for _, l := range e.losses {
		if l.rank == rank {
			return
		}
	}
	e.losses = append(e.losses, loss{rank, err})
	p.markLost(err)
	if p.provider != nil {
		p.provider.Detach(rank)
	}
	for _, c := range e.comms {
		if c.RankOf(rank) >= 0 {
			c.unacked++
		}
	}
	for _, o := range e.ops.oldestFirst() {
		if !o.underWay() {
			continue
		}
		switch {
		case int(o.peer) == rank && !o.busy:
			if o.phase == phasePosted {
				e.unpost(o)
			}
			o.exposed = false
			e.finish(o, err)
		case o.phase == phasePosted && (int(o.env.source) == rank || o.env.source == AnySource && o.comm.RankOf(rank) >= 0):
			e.unpost(o)
			e.finish(o, err)
		case o.comm.shadow == o.comm && o.comm.RankOf(rank) >= 0:
			e.abort(o, err)
		}
	}
	e.unread = nil // those of this peer are finished; others are asked again below
	for _, o := range e.ops.all {
		if o.gen&1 == 1 && o.exposed && o.phase == phaseMoving && o.kind == opSend {
			e.unread = append(e.unread, o)
		}
	}
	for id, s := range e.shrinks {
		if id.comm.RankOf(rank) >= 0 {
			s.changed()
		}
	}
	// Announcements of the lost rank can no longer be fetched.
	for a := e.match.first; a != nil; {
		next := a.seqNext
		if int(a.env.source) == rank && a.token != 0 {
			e.release(a)
			e.recycle(a)
		}
		a = next
	}
	maps.DeleteFunc(e.early, func(a earlyAsk, _ struct{}) bool { return a.from == rank })
	e.windows.lost(rank)
	e.sighted()
	e.wakeParked()
	e.strandLater(rank)
	e.rouse() // the provider has what was under way to report
	if e.onLoss != nil {
		e.onLoss(rank, err)
	}
}

// abort gives up an unfinished op with a reason. It may finish at once, or
// when the peer or the provider has confirmed.
func (e *engine) abort(o *op, err error) {
	if e.closed {
		return // finished as soon as the providers are closed
	}
	switch o.phase {
	case phasePosted:
		e.unpost(o)
		e.finish(o, err)
	case phaseQueued:
		p := e.peer(int(o.peer))
		e.withdraw(p, o)
		e.finish(o, err)
		p.out.giveUp()
	case phaseOffered:
		if int(o.peer) == e.rank {
			e.takeBackSelf(o, err)
			return
		}
		o.err = err
		if !o.retract {
			o.retract = true
			e.control(e.peer(int(o.peer)), transport.Header{Kind: kindRetract, Token: o.token()})
		}
	case phaseMoving:
		if int(o.peer) == e.rank {
			return // it is being copied, and finishes with that
		}
		switch p := e.peer(int(o.peer)); {
		case o.busy:
			o.err = err
			p.provider.Abandon(o.token())
			e.rouse()
		case o.kind == opRecv:
			e.finish(o, err) // what still comes finds no op and is discarded
		case !o.exposed: // cleared, and its data still waits for room
			e.control(p, transport.Header{Kind: kindRetract, Token: o.token(), Aux: o.sender})
			e.finish(o, err)
		}
	}
}

func (e *engine) takeBackSelf(o *op, err error) {
	for a := e.match.first; a != nil; a = a.seqNext {
		if a.sender == o {
			e.release(a)
			e.recycle(a)
			e.finish(o, err)
			return
		}
	}
}

func (e *engine) lost(c *Comm) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lostOf(c)
}

func (e *engine) lostOf(c *Comm) []int {
	var ranks []int
	for _, l := range e.losses {
		if r := c.RankOf(l.rank); r >= 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func (e *engine) acknowledge(c *Comm) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.unacked = 0 // not the shadow's: collectives need the lost rank, and would leave members waiting
	return e.lostOf(c)
}

// revoke implements Comm.Revoke: every member is told once by whoever learns
// of it first, so that it reaches everyone although its origin may die.
func (e *engine) revoke(c *Comm) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.comms[c.context&^1]; c != nil {
		e.revokeComm(c)
	}
}

// revokeContext is told by a rank that a communicator has been revoked.
func (e *engine) revokeContext(from int, context uint32) {
	if c := e.comms[context]; c != nil {
		e.revokeComm(c)
		return
	}
	if _, known := e.revokedEarly[context]; known || e.ended.has(context) ||
		hoards(e, from, "revocations", len(e.revokedEarly), maps.Values(e.revokedEarly), func(by int) bool { return by == from }) {
		return
	}
	e.revokedEarly[context] = from // attach revokes it from the start, and passes the news on
	e.discardOf(context, ErrRevoked)
}

func (e *engine) revokeComm(c *Comm) {
	if c.revoked.Load() {
		return
	}
	c.revoked.Store(true)
	c.shadow.revoked.Store(true)
	context := c.context
	for _, o := range e.ops.oldestFirst() {
		if o.underWay() && o.env.context&^1 == context {
			e.abort(o, ErrRevoked)
		}
	}
	e.discardOf(context, ErrRevoked)
	e.tellRevoked(c)
	e.sighted()
	e.wakeParked()
}

// tellRevoked tells the other members of c that it has been revoked.
func (e *engine) tellRevoked(c *Comm) {
	for _, r := range c.group {
		if int(r) != e.rank {
			e.control(e.peer(int(r)), transport.Header{Kind: kindRevoke, Context: c.context})
		}
	}
}

type loss struct {
	rank int
	err  *lostError
}

// report is a loss that the engine has been told of from outside.
type report struct {
	rank int
	why  string
}

// lostError carries which rank was lost from the engine to the caller's error.
type lostError struct {
	rank int
	why  string
	ours bool // the rank may be well: the fault is this host's, which cannot reach it
}

func (l *lostError) Error() string { return fmt.Sprintf("rank %d lost: %s", l.rank, l.why) }

func (l *lostError) Unwrap() error { return ErrPeerLost }
