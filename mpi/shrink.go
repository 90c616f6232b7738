package mpi

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Shrink makes a communicator of the members that are still alive. It works
// on a revoked communicator. All survivors call it and get the same members
// in the same order; a member that others have given up gets ErrPeerLost about itself.
// A call that ends with its context can be repeated: it goes on with the same agreement, also where
// the others have come to it meanwhile. Two calls on one communicator must not overlap. Over the system's MPI library,
// which names no lost rank, it is ErrTransport.
//
// The survivors agree on who is lost by a rotating coordinator (Chandra and
// Toueg 1996), the lowest rank not known to be lost. It asks everyone for the losses they know,
// decides their union and tells everyone. If it dies meanwhile, the next one asks again, and
// whoever has heard a decision answers with it. A rank that has heard nothing asks each new coordinator
// whether it has been decided, since that one may have heard, and gone on.
//
// Whoever has answered coordinator k ignores decisions of coordinators below k, since k may not know of
// them. With ranks 0, 1 and 2: 0 decides, and dies before rank 1 has heard. 1 takes it for lost and asks 2. If 0's
// decision has come to 2 before that, 2 answers with it. If not, 2 answers with the losses it knows, and when 0's decision
// comes after all, it counts no more: 1 decides for both. But if k is lost, too, a rank below it that others had given up
// may turn out to be the lowest that lives. It is asked again, and then its decision counts.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	e, ok := c.dev.(*engine)
	if !ok {
		return nil, c.fail("shrink", ProcNull, AnyTag, ErrTransport, "the system's MPI library cannot name lost ranks")
	}
	c.mu.Lock()
	c.shrinks++
	id := shrinkID{comm: c, n: c.shrinks}
	c.mu.Unlock()

	lost, err := e.agreeLost(ctx, id)
	if err != nil {
		// The count names the agreement, so the next call must come to the one that the others have, or had, in mind.
		c.mu.Lock()
		if c.shrinks == id.n {
			c.shrinks--
		}
		c.mu.Unlock()
		return nil, c.fail("shrink", ProcNull, AnyTag, err, "")
	}
	name := c.childName("shrink")
	if slices.Contains(lost, c.rank) {
		return nil, c.fail("shrink", c.rank, AnyTag, ErrPeerLost, "the other ranks have given this one up")
	}
	group := make([]int32, 0, len(c.group)-len(lost))
	rank := 0
	for r, w := range c.group {
		if slices.Contains(lost, r) {
			continue
		}
		if r == c.rank {
			rank = len(group)
		}
		group = append(group, w)
	}
	return c.derive(ctx, name, group, rank, id.context())
}

// shrinkID names one call of Shrink.
type shrinkID struct {
	comm *Comm
	n    uint32
}

// shrinkContexts is the first of the ids that Shrink makes. Those that are counted stay below.
const shrinkContexts = 1 << 31

// context is the new communicator's context id. It needs no agreement: ids
// with the top bit are made from the parent's id and the count of its shrinks.
func (id shrinkID) context() uint32 {
	h := (id.comm.context ^ id.n*0x9e3779b1) * 0x85ebca6b
	h ^= h >> 15
	return h&^1 | shrinkContexts
}

type shrinkState struct {
	by      int // world rank because of which this one keeps it
	decided bool
	lost    []int
	asked   map[int]bool  // members that this rank has asked
	answers map[int][]int // what they answered to this rank as coordinator
	// The highest coordinator that this rank has answered. Decisions of lower ones do not count, unless this rank has asked
	// them since.
	round   int
	waiting []int // members that have asked and wait to be told
	w       *waiter
}

func (s *shrinkState) changed() {
	if s.w != nil {
		s.w.signal()
	}
}

// listen notes that this rank has answered a coordinator. From now on the decisions of lower ones do not count, even if this
// rank has asked them before.
func (s *shrinkState) listen(rank int) {
	if rank > s.round {
		s.round = rank
		maps.DeleteFunc(s.asked, func(r int, _ bool) bool { return r < rank })
	}
}

// What a kindShrink message says, in Aux.
const (
	shrinkAsk    = iota // from the coordinator: which ranks have you lost?
	shrinkAnswer        // to the coordinator: these
	shrinkDecide        // decided: these are lost
	shrinkQuery         // to the coordinator: has it been decided?
)

// shrinkState is the state of an agreement. A new one is kept on account of the world rank by.
func (e *engine) shrinkState(id shrinkID, by int) *shrinkState {
	s := e.shrinks[id]
	if s == nil {
		s = &shrinkState{by: by, asked: make(map[int]bool), answers: make(map[int][]int)}
		e.shrinks[id] = s
	}
	return s
}

// earlyAsk is a question about a communicator that this rank does not have yet.
type earlyAsk struct {
	from    int // world rank
	context uint32
	n       uint32
	what    uint64 // shrinkAsk or shrinkQuery
}

// answerEarly answers what was asked before a communicator was attached.
func (e *engine) answerEarly(context uint32) {
	for a := range e.early {
		if a.context == context {
			delete(e.early, a)
			e.shrinkMessage(a.from, &transport.Header{Kind: kindShrink, Context: context, Tag: int32(a.n), Aux: a.what}, nil)
		}
	}
}

// agreement is the condition a caller of Shrink waits for.
type agreement struct {
	e  *engine
	id shrinkID
	s  *shrinkState
}

func (a *agreement) watch(w *waiter) { a.s.w = w }

// met advances the agreement as far as the news allow.
func (a *agreement) met() bool {
	e, c, s := a.e, a.id.comm, a.s
	if s.decided || e.closed {
		return true
	}
	known := e.lostOf(c)
	coordinator := 0
	for slices.Contains(known, coordinator) {
		coordinator++
	}
	if s.round > coordinator && !slices.Contains(known, s.round) {
		coordinator = s.round // which knows of losses that have not been heard of here
	}
	if coordinator != c.rank {
		if max(coordinator, s.round) > 0 && !s.asked[coordinator] {
			s.asked[coordinator] = true
			e.say(a.id, coordinator, shrinkQuery, nil)
		}
		return false
	}
	union := known
	complete := true
	for r := range c.Size() {
		if r == c.rank || slices.Contains(known, r) {
			continue
		}
		if !s.asked[r] {
			s.asked[r] = true
			e.say(a.id, r, shrinkAsk, nil)
		}
		answer, ok := s.answers[r]
		if !ok {
			complete = false
			continue
		}
		for _, l := range answer {
			if !slices.Contains(union, l) {
				union = append(union, l)
			}
		}
	}
	if complete {
		slices.Sort(union)
		a.decide(union)
	}
	return complete
}

func (a *agreement) decide(lost []int) {
	a.s.decided, a.s.lost = true, lost
	for r := range a.id.comm.Size() {
		if r != a.id.comm.rank {
			a.e.say(a.id, r, shrinkDecide, lost)
		}
	}
}

func (e *engine) agreeLost(ctx context.Context, id shrinkID) ([]int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := &agreement{e: e, id: id, s: e.shrinkState(id, e.rank)}
	if err := e.await(ctx, a); err != nil {
		return nil, fmt.Errorf("survivors have not agreed: %w", err)
	}
	if !a.s.decided {
		return nil, e.broken(id.comm)
	}
	return a.s.lost, nil
}

func (e *engine) say(id shrinkID, rank int, what uint64, lost []int) {
	e.sayOf(id.comm.context, id.n, int(id.comm.group[rank]), what, lost)
}

// sayOf says something to a world rank about the n-th Shrink of a communicator.
func (e *engine) sayOf(context, n uint32, world int, what uint64, lost []int) {
	payload := make([]byte, 0, 4*len(lost))
	for _, r := range lost {
		payload = binary.LittleEndian.AppendUint32(payload, uint32(r))
	}
	h := transport.Header{Kind: kindShrink, Context: context, Tag: int32(n), Aux: what, Bytes: uint64(len(payload))}
	if what == shrinkAnswer || what == shrinkDecide { // which the peer may ask for without end
		e.reply(e.peer(world), parcel{step: stepAnswer, h: h, more: payload})
		return
	}
	e.controlWith(e.peer(world), h, payload)
}

// forgetShrinks ends the agreements on a communicator and returns what they have decided.
func (e *engine) forgetShrinks(c *Comm) []decision {
	var decided []decision
	maps.DeleteFunc(e.shrinks, func(id shrinkID, s *shrinkState) bool {
		mine := id.comm.shadow == c.shadow
		if mine && s.decided {
			decided = append(decided, decision{context: id.comm.context, n: id.n, lost: s.lost})
		}
		return mine
	})
	return decided
}

// askedAbsent handles a question about the Shrink of a communicator that this rank does not have: because it has freed the
// communicator, or has yet to finish the Shrink that makes it.
func (e *engine) askedAbsent(from int, h *transport.Header) {
	a := earlyAsk{from: from, context: h.Context, n: uint32(h.Tag), what: h.Aux}
	if e.ended.has(a.context) {
		if lost, ok := e.ended.decision(a.context, a.n); ok {
			e.sayOf(a.context, a.n, from, shrinkDecide, lost)
		}
		return
	}
	if !hoards(e, from, "questions about communicators", len(e.early), maps.Keys(e.early), func(a earlyAsk) bool { return a.from == from }) {
		e.early[a] = struct{}{}
	}
}

// shrinkMessage handles a message of the agreement, also before this rank has
// called Shrink and after it has returned.
func (e *engine) shrinkMessage(from int, h *transport.Header, payload []byte) {
	c := e.comms[h.Context]
	if c == nil {
		if h.Aux == shrinkAsk || h.Aux == shrinkQuery {
			e.askedAbsent(from, h)
		}
		return
	}
	rank := c.RankOf(from)
	if rank < 0 {
		return
	}
	id := shrinkID{comm: c, n: uint32(h.Tag)}
	if e.shrinks[id] == nil && hoards(e, from, "agreements", len(e.shrinks), maps.Values(e.shrinks), func(s *shrinkState) bool { return s.by == from }) {
		return
	}
	s := e.shrinkState(id, from)
	var lost []int
	for ; len(payload) > 0; payload = payload[4:] {
		lost = append(lost, int(binary.LittleEndian.Uint32(payload)))
	}
	switch h.Aux {
	case shrinkAsk:
		if s.decided {
			e.say(id, rank, shrinkDecide, s.lost)
		} else {
			s.listen(rank)
			e.say(id, rank, shrinkAnswer, e.lostOf(c))
		}
	case shrinkAnswer:
		s.answers[rank] = lost
	case shrinkQuery:
		if s.decided {
			e.say(id, rank, shrinkDecide, s.lost)
		} else if !slices.Contains(s.waiting, rank) {
			s.waiting = append(s.waiting, rank)
		}
	case shrinkDecide:
		if s.decided || rank < s.round && !s.asked[rank] {
			break
		}
		s.decided, s.lost = true, lost
		for _, r := range s.waiting {
			e.say(id, r, shrinkDecide, lost)
		}
	}
	s.changed()
}
