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

// MemoryPlan is shared memory where plans are named: collectives without messages, on one host.
const MemoryPlan = "memory"

// memorySource is where the idea comes from.
const memorySource = "Graham, Shipman 2008"

// meets reports whether ranks that share an arena can do a blocking call in it.
// It depends on what all ranks know alike.
func (q *call) meets(size int) bool {
	if q.counts[1] != nil { // every rank has counts of its own
		return false
	}
	block, whole := q.count, q.count*size
	if counts := q.counts[0]; counts != nil {
		block, whole = 0, 0
		for _, n := range counts {
			block = max(block, n)
			whole += n
		}
	}
	return memoryTakes(q.kind, block*q.typ.size, whole*q.typ.size)
}

// memoryTakes reports whether an arena can do a collective: block is the bytes of a
// vector, or of the longest block, and whole those of all blocks.
func memoryTakes(k plan.Kind, block, whole int) bool {
	switch k {
	case plan.Barrier, plan.Allreduce:
		return true
	case plan.Bcast, plan.Reduce, plan.Scan, plan.Exscan, plan.Gather, plan.Allgather:
		return block <= slotBytes
	case plan.Scatter, plan.ReduceScatter, plan.Alltoall:
		return whole <= slotBytes
	}
	return false
}

// memorySeconds is the price of a collective in an arena: one crossing, what a rank
// copies and combines, and what lines that another core wrote take longer to come than
// those of its own, which is also what a message's bytes take. For long vectors two
// crossings and two exchanges for each step. Ranks that share processors divide
// their time, and for a crossing all must have had their turn, twice. It is the
// mean over the ranks: of rooted collectives only some ranks wait.
func memorySeconds(p *plan.Problem, m *plan.Model) float64 {
	n, others := p.Count*p.ElemBytes, float64(p.Size-1)
	if p.Counts != nil {
		n = p.TotalBytes() / p.Size
	}
	cross := m.Cross
	if cross == 0 {
		cross = m.Host.OneWay.Alpha()
	}
	divided := max(1, p.RanksPerCore)
	if divided > 1 {
		cross += 2 * m.Switch
	}
	beyond := func(c plan.Curve, n int) float64 { return divided * (c.At(n) - c.Alpha()) }
	fetch, copied := beyond(m.Host.OneWay, n), divided*m.Copy.At(n)
	switch p.Kind {
	case plan.Barrier:
		return cross
	case plan.Bcast, plan.Scatter:
		return (copied + others*(cross+fetch)) / (others + 1)
	case plan.Gather:
		return (cross+others*fetch)/(others+1) + copied
	case plan.Reduce:
		return (cross+others*(fetch+divided*m.Combine.At(n)))/(others+1) + copied
	case plan.Allgather, plan.Alltoall:
		return cross + others*fetch + copied
	}
	if n <= slotBytes {
		return cross + others*(fetch+divided*m.Combine.At(n))
	}
	slice := n / p.Size
	steps := float64((slice + boxBytes - 1) / boxBytes)
	piece := min(slice, boxBytes)
	return cross + steps*(2*cross+others*2*beyond(m.Host.Exchange, piece)+divided*(others*m.Combine.At(piece)+(others+1)*m.Copy.At(piece)))
}

// usesMemory decides between the arena, where there is one, and a plan, and says why.
func (f *Config) usesMemory(p *plan.Problem) (why string, ok bool) {
	if name, ok := f.Force[p.Kind]; ok {
		return "forced", name == MemoryPlan
	}
	if f.Site != nil {
		if r, ok := f.Site.rule(p); ok {
			return "site table " + f.Site.Name, r.Plan == MemoryPlan
		}
	}
	m := f.model()
	return "cheapest by model " + m.Name, memorySeconds(p, m) <= plan.Rank(p, m)[0].Seconds
}

// meet does a call in the arena, if that is how it is best done.
func (s *state) meet(ctx context.Context, c *mpi.Comm, q *call, a *arena) (met bool, err error) {
	s.mu.Lock()
	if b := s.broken.Load(); b != nil {
		s.mu.Unlock()
		return true, s.refuse(q.kind, b)
	}
	e, err := s.find(c, q)
	if err != nil || !e.memory {
		s.mu.Unlock()
		if err != nil {
			err = s.fault(q.kind, 0, err)
		}
		return err != nil, err
	}
	s.count()
	m := meeting{arena: a, entry: e, comm: c, seq: s.seq, send: q.send, recv: q.recv}
	s.watch.heard(m.seq, e.signature)
	a.tickets++
	ticket := a.tickets
	s.mu.Unlock()

	a.enter(ticket)
	if q.kind == plan.Allreduce && len(q.send) > slotBytes {
		err = m.long(ctx)
	} else {
		err = m.short(ctx)
	}
	a.leave(ticket)
	if err != nil {
		x := &execution{state: s, entry: e, comm: c, shadow: c.Shadow(), seq: m.seq}
		x.fail(err)
		return true, x.err
	}
	return true, nil
}
