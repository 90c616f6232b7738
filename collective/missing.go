package collective

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// An execution waits for one message after the other, in the order of its plan, and a meeting in an arena for one rank after
// the other. A stall report names all ranks that have not come. Over a system's MPI library nobody can tell whether a
// message has come without receiving it: only the one that is waited for is known. Of the library's own collectives
// nothing is.

// expected is the first message, or part of one, that a round expects of a rank.
type expected struct {
	request mpi.Request
	peer    int32
}

// expectAll lets the look-out know of all receives of the round.
func (x *execution) expectAll() {
	x.mu.Lock()
	x.expected = x.expected[:0]
	for i := range x.incoming {
		if m := &x.incoming[i]; m.posted > 0 {
			x.expected = append(x.expected, expected{x.receives[m.first], m.step.Peer})
		}
	}
	x.mu.Unlock()
}

// missing lists the ranks that the execution waits for, first the one that it waits for now.
func (s *state) missing(c *mpi.Comm, g glimpse) []int {
	missing := []int{g.peer}
	if _, native := c.Native(); native {
		return missing
	}
	var round []expected
	s.mu.Lock()
	for _, x := range s.watch.active {
		if x.seq == g.seq && x.signature == g.signature {
			x.mu.Lock()
			round = slices.Clone(x.expected)
			missing = x.awaited.missing(missing) // the arena stays while a meeting is active
			x.mu.Unlock()
		}
	}
	s.mu.Unlock()
	for _, e := range round {
		if slices.Contains(missing, int(e.peer)) {
			continue
		}
		select {
		case <-e.request.Done(): // it has come, and perhaps been waited for
		default:
			missing = append(missing, int(e.peer))
		}
	}
	return missing
}

// mostNamed ranks are named in a stall report.
const mostNamed = 8

// nameRanks names ranks of c and their hosts, the first of many.
func nameRanks(c *mpi.Comm, ranks []int) string {
	named := make([]string, 0, mostNamed)
	for _, r := range ranks[:min(len(ranks), mostNamed)] {
		named = append(named, fmt.Sprintf("%d (%s)", r, c.Host(r)))
	}
	text := "rank " + named[0]
	if len(named) > 1 {
		text = "ranks " + strings.Join(named, ", ")
	}
	if more := len(ranks) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
