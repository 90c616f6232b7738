package collective

import (
	"context"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// meeting is one collective in an arena.
type meeting struct {
	*arena
	entry      *entry
	comm       *mpi.Comm
	seq        uint32
	send, recv []byte
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

// meet does a call in the arena, if that is how it is best done.
func (s *state) meet(ctx context.Context, c *mpi.Comm, q *call, a *arena) (met bool, err error) {
	s.mu.Lock()
	if b := s.broken.Load(); b != nil {
		s.mu.Unlock()
		return true, s.refuse(q.kind, b)
	}
	e, err := s.find(c, q)
	switch {
	case err != nil:
		err = s.rejected(q, err)
		s.mu.Unlock()
		return true, err
	case e.way < bySlots:
		s.mu.Unlock()
		return false, nil
	}
	s.count()
	// As a literal it would be made on the side and copied, which costs more than the rest here.
	var m meeting
	m.arena, m.entry, m.comm, m.seq = a, e, c, s.seq
	m.send, m.recv = q.send, q.recv
	s.watch.heard(m.seq, e.signature)
	a.tickets++
	ticket := a.tickets
	s.mu.Unlock()

	if err = s.queue(ctx, c, a, ticket, e.kind, m.seq); err == nil {
		err = m.hold(ctx)
	}
	a.leave(ticket)
	if err != nil {
		x := &execution{state: s, entry: e, comm: c, shadow: c.Shadow(), seq: m.seq}
		x.fail(err)
		return true, x.err
	}
	return true, nil
}

// queue waits for a meeting's turn. If ctx ends before that, collectives on the communicator are over: the
// meetings before it end when they look up, and then it is its turn.
func (s *state) queue(ctx context.Context, c *mpi.Comm, a *arena, ticket uint64, k plan.Kind, seq uint32) error {
	if a.served.Load()+1 == ticket {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { s.giveUp(c.Shadow(), s.fault(k, seq, context.Cause(ctx))) })
	a.enter(ticket)
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

// hold does the collective, now that it is the meeting's turn.
func (m *meeting) hold(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	switch {
	case m.entry.way == bySlots:
		return m.short(ctx)
	case m.entry.way == byReading || m.entry.readsMapped && m.allMapped || m.entry.readsFar && m.pace.direct():
		return m.direct(ctx)
	}
	return m.long(ctx)
}
