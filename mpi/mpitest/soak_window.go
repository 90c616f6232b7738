package mpitest

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// soakWindow is the one-sided part of the soak: a goroutine's window on a communicator of its own, since a fence
// is collective. A part is, in this order: what each rank puts, counters that all change, and a pair that is
// changed under the lock.
type soakWindow struct {
	c   *mpi.Comm
	w   *mpi.Window[int64]
	own *rand.Rand
	// grown is what the counters of each rank have grown to, and turns how often its lock has been held: they
	// follow from the seed.
	plan  *rand.Rand
	grown [][]int64
	turns []int64
}

const (
	soakPut      = 1000 // elements that one rank puts to another, at most
	soakCounters = 4
	soakPair     = 2
)

// newSoakWindow makes a window on c, whose parts lie in memory from mpi.Alloc on some ranks. All ranks give the
// same seed.
func newSoakWindow(ctx context.Context, c *mpi.Comm, seed uint64) (*soakWindow, func() error, error) {
	s := &soakWindow{c: c, plan: rand.New(rand.NewPCG(seed, 0)), own: rand.New(rand.NewPCG(seed, uint64(c.Rank()+1))),
		grown: make([][]int64, c.Size()), turns: make([]int64, c.Size())}
	for r := range s.grown {
		s.grown[r] = make([]int64, soakCounters)
	}
	part := make([]int64, c.Size()*soakPut+soakCounters+soakPair)
	free := func() error { return nil }
	if s.own.IntN(2) == 0 {
		var err error
		if part, err = mpi.Alloc[int64](c, len(part)); err != nil {
			return nil, nil, err
		}
		clear(part)
		free = func() error { return mpi.Free(c, part) }
	}
	var err error
	s.w, err = mpi.NewWindow(ctx, c, part)
	if err != nil {
		return nil, nil, err
	}
	return s, func() error {
		if err := s.w.Free(ctx); err != nil {
			return err
		}
		return free()
	}, nil
}

func (s *soakWindow) counters() int { return s.c.Size() * soakPut }
func (s *soakWindow) pair() int     { return s.counters() + soakCounters }

// round changes all parts, each element by a call drawn at random, and looks at them after a fence.
func (s *soakWindow) round(ctx context.Context, round int) error {
	n := make([]int, s.c.Size()) // how much each rank puts to each
	for r := range n {
		n[r] = 1 + s.plan.IntN(soakPut)
	}
	for target := range s.c.Size() {
		if err := s.put(ctx, target, round, n[s.c.Rank()]); err != nil {
			return err
		}
	}
	for from := range s.c.Size() {
		for target := range s.c.Size() {
			at, by := s.plan.IntN(soakCounters), int64(1+s.plan.IntN(9))
			s.grown[target][at] += by
			locks := s.plan.IntN(3) == 0
			if locks {
				s.turns[target]++
			}
			if from != s.c.Rank() {
				continue
			}
			if err := s.count(ctx, target, s.counters()+at, by); err != nil {
				return err
			}
			if locks {
				if err := s.lock(ctx, target); err != nil {
					return err
				}
			}
		}
	}
	if err := s.w.Fence(ctx); err != nil {
		return err
	}
	for target := range s.c.Size() {
		if err := s.look(ctx, target, round, n); err != nil {
			return fmt.Errorf("part of rank %d: %w", target, err)
		}
	}
	return s.w.Fence(ctx) // nobody changes a part that somebody looks at
}

func soakElement(from, target, round, i int) int64 {
	return int64(from)<<48 | int64(target)<<40 | int64(round)<<20 | int64(i)
}

// put writes n elements to where the target has this rank's, by one call or two.
func (s *soakWindow) put(ctx context.Context, target, round, n int) error {
	v := make([]int64, n)
	for i := range v {
		v[i] = soakElement(s.c.Rank(), target, round, i)
	}
	half := s.own.IntN(n + 1)
	if err := s.w.Put(ctx, target, s.c.Rank()*soakPut, v[:half]); err != nil {
		return err
	}
	if err := s.w.Accumulate(ctx, target, s.c.Rank()*soakPut+half, v[half:], mpi.AccReplace); err != nil {
		return err
	}
	clear(v) // they have been taken
	if s.own.IntN(4) == 0 {
		return s.w.Flush(ctx, target)
	}
	return nil
}

// count adds to a counter.
func (s *soakWindow) count(ctx context.Context, target, at int, by int64) error {
	switch s.own.IntN(3) {
	case 0:
		return s.w.Accumulate(ctx, target, at, []int64{by}, mpi.AccSum)
	case 1:
		_, err := s.w.FetchAndOp(ctx, target, at, by, mpi.AccSum)
		return err
	}
	for was := int64(0); ; {
		got, err := s.w.CompareAndSwap(ctx, target, at, was, was+by)
		if err != nil || got == was {
			return err
		}
		was = got
	}
}

// lock changes the pair, whose elements are always each other's opposite.
func (s *soakWindow) lock(ctx context.Context, target int) error {
	if err := s.w.Lock(ctx, target, mpi.LockExclusive); err != nil {
		return err
	}
	v := make([]int64, soakPair)
	if err := s.w.Get(ctx, target, s.pair(), v); err != nil {
		return err
	}
	if v[0] != -v[1] {
		return fmt.Errorf("under the lock of rank %d: half a change was seen: %v", target, v)
	}
	if err := s.w.Put(ctx, target, s.pair(), []int64{v[0] + 1, v[1] - 1}); err != nil {
		return err
	}
	return s.w.Unlock(ctx, target)
}

// look reads a part as a whole.
func (s *soakWindow) look(ctx context.Context, target, round int, n []int) error {
	v := make([]int64, s.w.Len(target))
	if err := s.w.Get(ctx, target, 0, v); err != nil {
		return err
	}
	for from, n := range n {
		for i := range n {
			if got, want := v[from*soakPut+i], soakElement(from, target, round, i); got != want {
				return fmt.Errorf("element %d of rank %d is %#x, want %#x", i, from, got, want)
			}
		}
	}
	for i, want := range s.grown[target] {
		if got := v[s.counters()+i]; got != want {
			return fmt.Errorf("counter %d is %d, want %d", i, got, want)
		}
	}
	if pair, want := v[s.pair():], s.turns[target]; pair[0] != want || pair[1] != -want {
		return fmt.Errorf("the pair is %v, want %d and %d", pair, want, -want)
	}
	return nil
}
