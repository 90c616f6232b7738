package mpi

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Shared is memory in which every member of a communicator within one host has a part, and that all of them read
// and write as memory: what MPI_Win_allocate_shared gives.
type Shared[T Elem] struct {
	c     *Comm
	part  []T
	parts [][]T
	held  *heldMemory
	freed atomic.Bool
}

// AllocShared returns memory that the members of c share, with n zeroed elements in this rank's part; the parts may differ
// in length and be empty. Also over the system's MPI library. It is ErrTransport on all members if one cannot reach
// the part of another, as across hosts (see Comm.Node), or if one gets no memory. It stays until Free. Collective over c.
func AllocShared[T Elem](ctx context.Context, c *Comm, n int) (_ *Shared[T], err error) {
	part, noMemory := Alloc[T](c, n)
	s := &Shared[T]{c: c, part: part, parts: make([][]T, c.Size()), held: &heldMemory{memory: &c.world.memory}}
	k := c.begin(collectiveShare)
	defer func() { k.end(err) }()
	p, err := k.shareParts(ctx, Bytes(part), KindOf[T](), SizeOf[T](), s.held)
	if err == nil {
		err = s.agree(ctx, k, p, noMemory)
	}
	if err != nil {
		s.giveBack()
		return nil, err
	}
	return s, nil
}

// agree takes the parts if all members have all of them.
func (s *Shared[T]) agree(ctx context.Context, k *collectiveCall, p parts, noMemory error) error {
	without := uint32(0) // 1 + the rank that was not reached
	for r, mem := range p.direct {
		if mem == nil && p.lengths[r] > 0 {
			without = uint32(r) + 1
		}
		s.parts[r] = View[T](mem)
	}
	failed := noMemory != nil
	if failed {
		without = uint32(s.c.rank) + 1
	}
	worst, err := k.maximum(ctx, without)
	switch {
	case err != nil:
		return err
	case failed:
		return s.c.fail("allocshared", ProcNull, AnyTag, fmt.Errorf("%w: %w", ErrTransport, noMemory), "")
	case worst > 0:
		return s.c.fail("allocshared", int(worst)-1, AnyTag, ErrTransport, fmt.Sprintf("its part on %s is not in reach of all members", s.c.Host(int(worst)-1)))
	}
	return nil
}

// Part is a rank's part, also the caller's own. Like all memory that several processes use, it is read and written under
// rules of the program's own: atomic operations, or messages and collectives in between. It must not be
// used after Free, nor after the world's Close.
func (s *Shared[T]) Part(rank int) []T { return s.parts[rank] }

// Free gives back this rank's part, and what this rank has mapped of the others' parts. The others keep what they have
// mapped until they free it. Free is ErrArgument while a window lies in this rank's part; the part then stays until
// another Free. Not collective.
func (s *Shared[T]) Free() error {
	if s.freed.Swap(true) {
		return nil
	}
	err := s.giveBack()
	if err != nil {
		s.freed.Store(false)
	}
	return err
}

func (s *Shared[T]) giveBack() error {
	s.held.release()
	s.parts = nil
	if err := Free(s.c, s.part); err != nil {
		return err
	}
	s.part = nil
	return nil
}
