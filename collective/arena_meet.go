package collective

import (
	"context"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// meeting is a blocking call, which may become a collective in an arena.
type meeting struct {
	call
	// Of a collective in an arena.
	*arena
	entry     *entry
	comm      *mpi.Comm
	ticket    uint64 // for its turn there; 0: the call is not done there
	signature signature
	begun     bool // at once, and this rank's slot is written: see beginAtOnce
}

// meets reports whether ranks that share an arena can do a blocking call in it.
// It depends on what all ranks know alike.
func (q *call) meets() bool { return q.counts[1] == nil } // else every rank has counts of its own

// fitsSlot reports whether all that a rank contributes fits into one slot.
func fitsSlot(p *plan.Problem) bool {
	n := p.Count * p.ElemBytes
	switch p.Kind {
	case plan.Barrier:
		return true
	case plan.Gather, plan.Allgather:
		for _, c := range p.Counts {
			n = max(n, c*p.ElemBytes)
		}
	case plan.Scatter, plan.ReduceScatter, plan.Alltoall:
		n = p.TotalBytes()
	}
	return n <= slotBytes
}

// meet does a call in the arena of m, or by messages if that is better. The call has no mistakes.
func (s *state) meet(ctx context.Context, m *meeting) error {
	s.mu.Lock()
	err := s.open(&m.call, m.arena)
	if err == nil {
		if err = s.enrol(m); m.ticket != 0 {
			s.beginAtOnce(m)
			s.watch.heard(m.seq, &m.signature)
		}
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return err
	case m.ticket == 0:
		return s.perform(ctx, m.comm, &m.call)
	case m.entry.op.user != nil:
		return s.attendOperator(ctx, m)
	}
	return s.attend(ctx, m)
}

// open lets calls into the arena if q has made it, and refuses q where collectives are over. The state is locked.
func (s *state) open(q *call, a *arena) error {
	if q.made {
		s.settleArena(a)
	}
	if b := s.broken.Load(); b != nil {
		return s.refuse(q, b)
	}
	return nil
}

// enrol gives a call a ticket for the arena of m, unless it is better done otherwise.
// Whoever has a ticket attends the meeting or passes. The state is locked.
func (s *state) enrol(m *meeting) error {
	m.here = true
	e, err := s.find(m.comm, &m.call)
	if err != nil {
		return s.rejected(&m.call, err)
	}
	if !e.way.inArena() {
		return nil
	}
	s.number(&m.call, e.digest)
	m.entry = e
	if m.phase == whole {
		m.signature.set(&e.signature, uint64(m.trail)<<48)
	} else {
		m.signature = m.signatureBy(e)
	}
	m.tickets++
	m.ticket = m.tickets
	return nil
}

// beginAtOnce begins a meeting, and writes this rank's slot, if it is the meeting's turn already and nobody has to be waited
// for, as it nearly always is. So the others have what they wait for before this rank does the rest of the call: of two
// ranks that come together each waits for as long as the other takes until then. The state is locked.
func (s *state) beginAtOnce(m *meeting) {
	if m.entry.atOnce && m.served.Load()+1 == m.ticket && s.broken.Load() == nil && m.free(m.turn+1) {
		m.turn++
		m.give()
		m.begun = true
	}
}

// beginInTurn begins a meeting when it is its turn, and this rank's slot may be written.
func (s *state) beginInTurn(ctx context.Context, m *meeting) error {
	if err := s.queue(ctx, m); err != nil {
		return err
	}
	if b := s.broken.Load(); b != nil {
		return b.Err
	}
	return m.begin(ctx)
}

// attend does the collective of a meeting when it is its turn. After a meeting that failed none is held: what this rank
// would show for it would stand where the others still look for the failed one.
func (s *state) attend(ctx context.Context, m *meeting) error {
	var err error
	if !m.begun {
		err = s.beginInTurn(ctx, m)
	}
	if err == nil {
		err = m.hold(ctx)
	}
	if err != nil {
		err = m.fail(s.causeOf(ctx, m.comm.Shadow(), err)) // before the next one's turn
	}
	m.leave(m.ticket)
	return err
}

// attendOperator is attend with an operator of the program, which may not return.
func (s *state) attendOperator(ctx context.Context, m *meeting) error {
	over := false
	defer func() {
		if !over {
			atomic.StoreUint64(&m.parts[m.me][withdrawn], m.turn)
			m.fail(noReturn(m.entry.op))
			m.leave(m.ticket)
		}
	}()
	err := s.attend(ctx, m)
	over = true
	return err
}

// fail ends the meeting, and collectives on the communicator, with an error.
func (m *meeting) fail(err error) error {
	x := &execution{state: m.sleeper.state, entry: m.entry, comm: m.comm, shadow: m.comm.Shadow(), seq: m.seq, signature: m.signature}
	x.fail(err)
	return x.err
}

// pass lets a meeting's turn go by, for the sake of those that come after it.
func (m *meeting) pass() {
	m.enter(m.ticket)
	m.leave(m.ticket)
}

// queue waits for a meeting's turn. If ctx ends before that, collectives on the communicator are over: the
// meetings before it end when they look up, and then it is its turn.
func (s *state) queue(ctx context.Context, m *meeting) error {
	if m.served.Load()+1 == m.ticket {
		return nil
	}
	c, kind, seq := m.comm, m.signature.kind(), m.seq // m itself would go to the heap
	stop := context.AfterFunc(ctx, func() { s.giveUp(c.Shadow(), s.fault(kind, seq, context.Cause(ctx))) })
	m.enter(m.ticket)
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

// hold does the collective of a meeting that has begun.
func (m *meeting) hold(ctx context.Context) error {
	leaving := m.leaving
	if m.entry.leaving == nil {
		m.entry.leaving = m.expected()
	}
	m.leaving = m.entry.leaving
	mapped := m.entry.readsMapped && m.mappable()
	if m.entry.way == bySlots && !mapped {
		if !m.begun {
			m.noteBuffers()
			m.give()
		}
		m.freeNext()
		if m.entry.kind == plan.Barrier && leaving != nil && leaving.matters {
			return m.leaveInOrder(ctx, leaving)
		}
		return m.throughSlots(ctx)
	}
	return m.atLength(ctx, mapped)
}

// atLength does the collective otherwise than through slots.
func (m *meeting) atLength(ctx context.Context, mapped bool) error {
	defer m.boundSaved()
	far := m.entry.farKernel || m.entry.farMapped && m.mappable()
	if m.entry.way == byDirect || mapped || far && m.pace.direct() {
		return m.direct(ctx)
	}
	return m.throughPieces(ctx)
}

// begin waits until this rank's slot of the next turn may be written. All meetings have a slot, whatever their way.
//
// There are 16 slots, which are used in turn. Before turns 16, 24, 32 and so on a rank waits until all have shown the turn 8
// before. Who has shown turn t-8 has finished turn t-9, so that the slots of turns t-16 to t-9 are free for turns t to t+7.
// The votes of turn t-8 are counted then, which is the same turn on all ranks; nobody writes there before all have shown turn t.
func (m *meeting) begin(ctx context.Context) error {
	m.turn++
	if m.free(m.turn) {
		return nil
	}
	before := m.turn - halfRing
	for _, r := range m.others {
		if err := m.reach(ctx, r, slot(before), before, m.everybody()); err != nil {
			return err
		}
		if err := m.compareSlots(r, before); err != nil { // here ranks that only give compare their calls, too
			return err
		}
	}
	m.count(before)
	return nil
}

const halfRing = slots / 2

// free reports whether this rank's slot of a turn may be written without waiting for anybody.
func (a *arena) free(turn uint64) bool { return turn%halfRing != 0 || turn < slots || turn == a.freed }

// freeNext does for the next turn what begin would wait for, if all have come so far by now, as they nearly always have. This
// rank waits for the others meanwhile; at the beginning of the next turn they would wait for it.
func (m *meeting) freeNext() {
	next := m.turn + 1
	if m.free(next) {
		return
	}
	before := next - halfRing
	for _, r := range m.others {
		if atomic.LoadUint64(&m.parts[r][slot(before)]) < before || !m.sameSlots(r, before) {
			return
		}
	}
	m.count(before)
	m.freed = next
}

// count counts the votes of a turn, which all have shown.
func (a *arena) count(turn uint64) {
	votes := a.heads[turn%slots][callAt] & votesMask
	for _, r := range a.others {
		votes += a.parts[r][slot(turn)+callAt] & votesMask
	}
	a.pace.far = some(votes, farVote)
	for l, votes := range [lengths]uint64{long: votes, short: votes >> shortVotes} {
		a.allMapped[l] = some(votes, mappedVote) && !some(votes, heapVote)
	}
}

// boundSaved lets go of the memory of a very long vector, which few calls may need again.
func (a *arena) boundSaved() {
	if cap(a.saved) > idleBytes {
		a.saved = nil
	}
}
