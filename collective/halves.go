package collective

import (
	"context"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// runHalves does a blocking call q that consists of two collectives. between makes the second one's input out of this
// rank's result of the first. If it returns an error, the same on all ranks, the second is left out. To the other
// goroutines q is one call: theirs come before both halves or after both. So the halves have one number, and where they
// meet in the arena they get their turns there together.
func runHalves(ctx context.Context, c *mpi.Comm, q *call, first, second *meeting, between func() error) error {
	s := stateOf(c)
	a, err := s.arenaFor(ctx, c, q)
	if err != nil {
		return err
	}
	halves := [2]*meeting{first, second}
	s.mu.Lock()
	if err = s.open(q, a); err == nil {
		s.number(q, q.sign(0).digest())
		for _, m := range halves {
			if m.seq, m.trail = q.seq, q.trail; a != nil && err == nil {
				m.arena, m.comm = a, c
				if err = s.enrol(m); m.ticket != 0 {
					s.watch.heard(m.seq, &m.signature)
				}
			}
		}
	}
	s.mu.Unlock()
	for _, m := range halves {
		if m == second && err == nil {
			err = between()
		}
		switch {
		case err == nil && m.ticket == 0:
			err = s.perform(ctx, c, &m.call)
		case err == nil:
			err = s.attend(ctx, m)
		case m.ticket != 0:
			m.pass()
		}
	}
	return err
}
