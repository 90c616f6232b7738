package mpitest

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// The checks of memory that the ranks of a host map.

// checkMap: rank 1 maps what rank 0 has, reads and writes it, and keeps the mapping when rank 0 frees the
// memory, which is zero then, unless a window was in it or its pages are huge. Where ranks share no memory, both learn so.
func checkMap(ctx context.Context, c *mpi.Comm) error {
	const ordinary, large = 1 << 20, 3 << 20 // bytes: huge pages are for large memory only
	peer := 1 - c.Rank()
	if !c.SharesMemory(peer) {
		buf, err := mpi.Alloc[byte](c, large)
		if err != nil {
			return err
		}
		defer mpi.Free(c, buf)
		_, err = c.Map(ctx, peer, 1)
		return wants("mapping memory of a rank that shares none", err, mpi.ErrTransport)
	}
	if err := mapFreed(ctx, c, ordinary, false, 0); err != nil || c.Caps().Name == "mpi" {
		return err
	}
	return mapFreed(ctx, c, large, true, 7)
}

// mapFreed maps n bytes, and finds after in them when they are freed.
func mapFreed(ctx context.Context, c *mpi.Comm, n int, windowed bool, after byte) error {
	const at = 12_345
	var buf []byte
	if c.Rank() == 0 {
		var err error
		if buf, err = mpi.Alloc[byte](c, n); err != nil {
			return err
		}
	}
	if windowed {
		w, err := mpi.NewWindow(ctx, c, buf)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := wants("freeing memory of a window", mpi.Free(c, buf), mpi.ErrArgument); err != nil {
				return err
			}
		}
		if err := w.Free(ctx); err != nil {
			return err
		}
	}
	if c.Rank() == 0 {
		return lendMemory(ctx, c, buf, at)
	}
	return borrowMemory(ctx, c, after)
}

// lendMemory tells rank 1 where in memory a part is, and frees it when that has written to it.
func lendMemory(ctx context.Context, c *mpi.Comm, buf []byte, at int) error {
	part := buf[at:]
	place, ok := mpi.Locate(c, part)
	if !ok || place.OffsetBytes != at {
		return fmt.Errorf("located at %+v, %v", place, ok)
	}
	if again, _ := mpi.Locate(c, buf[at:at+1]); again != place {
		return fmt.Errorf("%+v and then %+v", place, again)
	}
	for _, b := range [][]byte{nil, buf[:0], make([]byte, 5)} {
		if _, ok := mpi.Locate(c, b); ok {
			return fmt.Errorf("%d bytes, of the heap or none, were located", len(b))
		}
	}
	part[0] = 5
	where := []int64{int64(place.Slab), int64(place.OffsetBytes)}
	if err := mpi.Send(ctx, c, where, 1, 0); err != nil {
		return err
	}
	if _, err := mpi.Recv(ctx, c, where, 1, 0); err != nil {
		return err
	}
	if part[0] != 7 {
		return fmt.Errorf("rank 1 wrote 7, here is %d", part[0])
	}
	if err := mpi.Free(c, buf); err != nil {
		return err
	}
	return mpi.Send(ctx, c, where, 1, 0)
}

// borrowMemory maps what rank 0 lends.
func borrowMemory(ctx context.Context, c *mpi.Comm, after byte) error {
	where := make([]int64, 2)
	if _, err := mpi.Recv(ctx, c, where, 0, 0); err != nil {
		return err
	}
	slab := uint64(where[0])
	m, err := c.Map(ctx, 0, slab)
	if err != nil {
		return err
	}
	second, err := c.Map(ctx, 0, slab)
	if err != nil {
		return err
	}
	if &second.Bytes()[0] != &m.Bytes()[0] {
		return errors.New("mapped twice")
	}
	second.Release()
	second.Release() // which does nothing
	mem := m.Bytes()[where[1]:]
	if mem[0] != 5 {
		return fmt.Errorf("rank 0 wrote 5, here is %d", mem[0])
	}
	mem[0] = 7
	if err := mpi.Send(ctx, c, where, 0, 0); err != nil {
		return err
	}
	if _, err := mpi.Recv(ctx, c, where, 0, 0); err != nil {
		return err
	}
	if mem[0] != after {
		return fmt.Errorf("in memory that was freed is %d, want %d", mem[0], after)
	}
	m.Release()
	if _, err := c.Map(ctx, 0, slab); err == nil {
		return errors.New("memory that was freed was mapped again")
	}
	if _, err := c.Map(ctx, 2, slab); !errors.Is(err, mpi.ErrRank) {
		return fmt.Errorf("rank 2 of 2: %v", err)
	}
	_, err = c.Map(ctx, 1, slab)
	return wants("mapping memory of this rank itself", err, mpi.ErrTransport)
}

// checkAllocShared: what a rank writes to another's part is there, and each rank may free when it likes. Where a
// rank shares no memory with the others, all learn so.
func checkAllocShared(ctx context.Context, c *mpi.Comm) error {
	shares := true
	for r := range c.Size() {
		shares = shares && (r == c.Rank() || c.SharesMemory(r))
	}
	for _, n := range []int{3000, 1} { // of rank 0; the next has none, and the others more
		s, err := mpi.AllocShared[float64](ctx, c, []int{n, 0, n + 2, n + 3}[c.Rank()])
		if !shares {
			if err := wants("shared memory of ranks that share none", err, mpi.ErrTransport); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := writeOthersParts(ctx, c, s, n); err != nil {
			return err
		}
	}
	if !shares || c.Caps().Name == "mpi" { // no windows there
		return nil
	}
	return freeUnderWindow(ctx, c)
}

// freeUnderWindow frees shared memory while a window lies in this rank's part, which is in vain, and then without.
func freeUnderWindow(ctx context.Context, c *mpi.Comm) error {
	s, err := mpi.AllocShared[float64](ctx, c, 8)
	if err != nil {
		return err
	}
	part := s.Part(c.Rank())
	w, err := mpi.NewWindow(ctx, c, part)
	if err != nil {
		return err
	}
	if err := wants("freeing shared memory of a window", s.Free(), mpi.ErrArgument); err != nil {
		return err
	}
	if err := errors.Join(w.Free(ctx), s.Free()); err != nil {
		return err
	}
	return wants("freeing it once more", mpi.Free(c, part), mpi.ErrArgument)
}

// writeOthersParts has every rank write an element of all parts, and free its own when the others may still look at it.
func writeOthersParts(ctx context.Context, c *mpi.Comm, s *mpi.Shared[float64], n int) error {
	for r := range c.Size() {
		part := s.Part(r)
		if want := []int{n, 0, n + 2, n + 3}[r]; len(part) != want {
			return fmt.Errorf("the part of rank %d has %d elements, want %d", r, len(part), want)
		}
		if c.Rank() < len(part) {
			part[c.Rank()] = float64(100*r + c.Rank() + 1)
		}
	}
	if err := gatherRound(ctx, c); err != nil {
		return err
	}
	if c.Rank() == 0 {
		if err := errors.Join(s.Free(), s.Free()); err != nil {
			return err
		}
	}
	if err := gatherRound(ctx, c); err != nil {
		return err
	}
	if c.Rank() == 0 {
		return nil
	}
	for r := range c.Size() {
		for i, got := range s.Part(r)[:min(c.Size(), len(s.Part(r)))] {
			if want := float64(100*r + i + 1); got != want {
				return fmt.Errorf("element %d of rank %d is %v, want %v", i, r, got, want)
			}
		}
	}
	return s.Free()
}

// gatherRound returns when all ranks have called it.
func gatherRound(ctx context.Context, c *mpi.Comm) error {
	const tag = 77
	p := c.Size()
	for step := 1; step < p; step *= 2 {
		if _, err := mpi.Sendrecv(ctx, c, []byte{0}, (c.Rank()+step)%p, tag, make([]byte, 1), (c.Rank()-step+p)%p, tag); err != nil {
			return err
		}
	}
	return nil
}

// checkAllocMessages: messages arrive as they were sent, out of memory from Alloc and into it or not, however often that is
// freed and got again, at the same address perhaps.
func checkAllocMessages(ctx context.Context, c *mpi.Comm) error {
	const room, lives, rounds = 3 << 20, 4, 6
	heap := make([]byte, room)
	for life := range lives {
		mem, err := mpi.Alloc[byte](c, room)
		if err != nil {
			return err
		}
		for round := range rounds {
			for i, n := range []int{1, 8<<10 + 1, 16 << 10, 64<<10 + 3, 300 << 10, room - 5} {
				out, in := mem[5:][:n], heap[:n] // each of the four pairs comes about
				if (round+life)&1 != c.Rank() {
					out = heap[:n]
				}
				if round&2 != 0 {
					in = mem[:n]
				}
				id := uint64(100*(life*rounds+round) + i)
				for sender := range 2 {
					if err := passFilled(ctx, c, sender, out, in, id); err != nil {
						return fmt.Errorf("life %d, round %d: %w", life, round, err)
					}
				}
			}
		}
		if err := mpi.Free(c, mem); err != nil {
			return err
		}
	}
	return nil
}

// passFilled has one of two ranks fill out and send it, and the other receive it in in.
func passFilled(ctx context.Context, c *mpi.Comm, sender int, out, in []byte, id uint64) error {
	if c.Rank() == sender {
		fill(out, id)
		return mpi.Send(ctx, c, out, 1-sender, 0)
	}
	clear(in)
	if _, err := mpi.Recv(ctx, c, in, sender, 0); err != nil {
		return err
	}
	return verify(in, id)
}
