package collective

import (
	"context"
	"errors"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// admit tells a blocking call whether to meet the other ranks in an arena. The first blocking call after the communicator's
// first arenaAfter collectives makes the arena. It is the same call on all ranks, since they number their calls alike,
// whichever goroutines make them: the number is taken and the choice made under one lock. Making the arena is a part of
// that call and has its number. Blocking calls that come meanwhile wait, because they are to meet in the arena; nonblocking
// ones go on, by messages as ever.
//
// It blocks until the arena is settled or ctx ends, which ends collectives on the communicator.
func (s *state) admit(ctx context.Context, c *mpi.Comm, q *call) (*arena, error) {
	s.mu.Lock()
	switch making := s.making; {
	case s.arenaSettled.Load():
		s.mu.Unlock()
		return s.arena.Load(), nil
	case making != nil:
		s.mu.Unlock()
		select {
		case <-making:
		case <-s.off.Done(): // the call finds that when it starts
		case <-ctx.Done():
			err := s.fault(q.kind, 0, context.Cause(ctx))
			s.giveUp(c.Shadow(), err)
			return nil, err
		}
		return s.arena.Load(), nil
	}
	if b := s.broken.Load(); b != nil {
		s.mu.Unlock()
		return nil, s.refuse(q, b)
	}
	if err := q.check(); err != nil {
		err := s.rejected(q, err)
		s.mu.Unlock()
		return nil, err
	}
	if s.number(q, q.sign(0).digest()); q.seq <= arenaAfter {
		s.mu.Unlock()
		return nil, nil
	}
	s.making = make(chan struct{})
	if !s.arenaSuits(c) {
		s.settleArena(nil)
		s.mu.Unlock()
		return nil, nil
	}
	s.mu.Unlock()
	a, err := s.agreeOnArena(ctx, c, q)
	if a == nil {
		s.mu.Lock()
		s.settleArena(nil)
		s.mu.Unlock()
	}
	q.made = a != nil // the calls that wait are let in after this one
	return a, err
}

// agreeOnArena makes the arena when all have come to do so, or all learn why not.
func (s *state) agreeOnArena(ctx context.Context, c *mpi.Comm, q *call) (*arena, error) {
	if err := s.agree(ctx, c, q); err != nil {
		return nil, err
	}
	a, err := s.makeArena(ctx, c, q)
	var told *Error
	if err != nil && !errors.As(err, &told) {
		err = s.fault(q.kind, q.seq, s.end(c.Shadow(), q.kind, q.seq, err))
	}
	return a, err
}

// agree is a barrier whose messages carry the signature of q.
func (s *state) agree(ctx context.Context, c *mpi.Comm, q *call) error {
	b := q.part(comparing)
	b.kind, b.typ = plan.Barrier, q.typ
	return s.perform(ctx, c, &b)
}

// settleArena lets calls go on with an arena, or without. The state is locked.
func (s *state) settleArena(a *arena) {
	if a != nil && s.broken.Load() != nil {
		a.drop() // nobody else will
		a = nil
	}
	if a != nil {
		s.arena.Store(a)
	}
	s.arenaSettled.Store(true)
	close(s.making)
}
