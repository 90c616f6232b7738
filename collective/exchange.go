package collective

import (
	"context"
	"fmt"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Of an alltoallv every rank has counts of its own, so that they are not in its signature; and where a rank
// sends nothing to another, no message travels between them that could show it. So what one rank sends
// is compared with what the other expects when a rank is kept waiting (heed) and, by option, before the call.

// exchange is what one rank sends to another and expects from it, in elements.
type exchange struct{ sends, receives int }

// exchanges are those with all ranks in an alltoallv; not known of anything else.
type exchanges struct{ sends, receives []int }

// exchanges shares the counts of the entry, and does not keep its plan alive.
func (e *entry) exchanges() exchanges { return exchanges{e.counts[1], e.counts[2]} }

func (x exchanges) known() bool { return x.sends != nil }

// with is what this rank and another exchange; zero where it is not known.
func (x exchanges) with(peer int) exchange {
	if !x.known() {
		return exchange{}
	}
	return exchange{x.sends[peer], x.receives[peer]}
}

// pastAlltoallv is one that was started here.
type pastAlltoallv struct {
	seq uint32
	exchanges
}

// compare says how what this rank exchanges with a peer differs from what that says of it.
func (x exchange) compare(mine, peer int, host string, theirs exchange) error {
	const text = "rank %d%s called alltoallv with %d elements for rank %d%s, which called it and expects %d"
	at := fmt.Sprintf(" (%s)", host)
	switch {
	case x.sends != theirs.receives:
		return &mismatchError{fmt.Sprintf(text, mine, "", x.sends, peer, at, theirs.receives)}
	case x.receives != theirs.sends:
		return &mismatchError{fmt.Sprintf(text, peer, at, theirs.sends, mine, "", x.receives)}
	}
	return nil
}

// agreeOnCounts has every two ranks compare what they exchange in q, as a part of it. It costs an alltoall of 16 B each
// and allocates.
func (s *state) agreeOnCounts(ctx context.Context, c *mpi.Comm, q *call) error {
	const sends, receives, fields = 0, 1, 2
	s.mu.Lock()
	s.number(q, q.sign(0).digest())
	s.mu.Unlock()
	mine, theirs := make([]int64, fields*s.size), make([]int64, fields*s.size)
	for r := range s.size {
		mine[fields*r+sends], mine[fields*r+receives] = int64(q.counts[1][r]), int64(q.counts[2][r])
	}
	b := q.part(counting)
	setVector[int64](&b, plan.Alltoall, fields)
	setBuffers(&b, mine, theirs)
	if err := s.perform(ctx, c, &b); err != nil {
		return err
	}
	for r := range s.size {
		x := exchange{q.counts[1][r], q.counts[2][r]}
		err := x.compare(s.rank, r, c.Host(r), exchange{int(theirs[fields*r+sends]), int(theirs[fields*r+receives])})
		if err != nil {
			return s.fault(q.kind, q.seq, s.end(c.Shadow(), q.kind, q.seq, err))
		}
	}
	return nil
}
