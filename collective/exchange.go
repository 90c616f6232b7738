package collective

import (
	"context"
	"fmt"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// In an alltoallv every rank has counts of its own, so that they are not in the signature; and where a rank sends nothing
// to another that expects something, no message travels that could show it. So what one rank sends is compared with what
// the other expects when a rank is kept waiting (heed) and, by option, ahead of the rest of the call.

// exchange is what one rank sends to another and expects from it, in elements.
type exchange struct{ sends, receives int }

// exchanges are what a rank exchanges with all ranks in an alltoallv; they are not known of other collectives.
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

// pastAlltoallv is an alltoallv that was started here.
type pastAlltoallv struct {
	seq uint32
	exchanges
}

// compare says how what this rank exchanges with a peer differs from what the peer says of it.
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

// comparesCounts reports whether CheckAll has the ranks compare the counts of a call. Where payloads are not carried nothing
// arrives to be compared.
func (s *state) comparesCounts(e *entry) bool {
	return s.config.CheckAll && e.exchanges().known() && !s.sizesOnly
}

// exchangeFields are what a rank says of its exchange with another: sends and receives.
const exchangeFields = 2

// agreement is the comparison of what every two ranks exchange in a call, as a part of it in front of the rest.
type agreement struct {
	part   *execution // only the execution of the call advances it
	theirs []int64    // for each rank what it sends to this one, and what it expects from this one
}

// agreeOnCounts begins the comparison for a call. It costs an alltoall of 16 B each and allocates. The state is locked.
func (s *state) agreeOnCounts(c *mpi.Comm, q *call, e *entry) *agreement {
	x := e.exchanges()
	mine, theirs := make([]int64, 0, exchangeFields*s.size), make([]int64, exchangeFields*s.size)
	for r := range s.size {
		mine = append(mine, int64(x.sends[r]), int64(x.receives[r]))
	}
	b := q.part(counting)
	b.setVector(plan.Alltoall, typeOf[int64](), exchangeFields)
	b.setBuffers(mpi.Bytes(mine), mpi.Bytes(theirs))
	var part *execution
	of, err := s.find(c, &b)
	if err == nil {
		part, err = s.take(c, &b, of, blocking)
	}
	if err != nil {
		panic(fmt.Sprintf("collective: counts cannot be compared: %v", err)) // an alltoall of int64 is always possible
	}
	return &agreement{part, theirs}
}

// agree goes on with the comparison of counts, if there is one, and reports whether the rest of the call may begin. If not, it
// has failed or goes on later; x.err tells.
func (x *execution) agree(ctx context.Context, e effort) bool {
	a := x.agreement
	if a == nil {
		return true
	}
	if !a.part.advance(ctx, e) {
		return false
	}
	failed := a.part.err
	x.agreement = nil
	x.state.release(a.part)
	x.waitFor(mpi.Request{}, nobody)
	if x.err = failed; failed != nil {
		return false
	}
	if err := x.entry.exchanges().compare(x.comm, a.theirs); err != nil {
		x.fail(err)
	}
	return x.err == nil
}

// compare says how what this rank exchanges with the others differs from what they say of it, for the lowest rank that
// differs.
func (x exchanges) compare(c *mpi.Comm, theirs []int64) error {
	for r := range c.Size() {
		at := theirs[exchangeFields*r:]
		said := exchange{sends: int(at[0]), receives: int(at[1])}
		if err := x.with(r).compare(c.Rank(), r, c.Host(r), said); err != nil {
			return err
		}
	}
	return nil
}
