package mpi

import (
	"cmp"
	"context"
	"slices"
)

// Split and Dup need a small allgather and a maximum of their own, since
// collectives live above this package. Both run over the shadow
// communicator, on tags of their own.
const (
	tagAgree = iota
	tagSplit
	tagWindow
)

// ReservedTags is the number of tags, from 0, that this package keeps for
// itself on shadow communicators. Low ones, since the system's MPI library may have few.
const ReservedTags = 16

// Split makes a communicator for each color: its members are the ranks that
// gave that color, ordered by key, then by rank. A rank with a negative color (Undefined)
// gets nil. Collective over c; cost ⌈log₂P⌉ rounds.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	id, err := c.agreeContext(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]int64, 2*c.Size())
	all[2*c.rank], all[2*c.rank+1] = int64(color), int64(key)
	if err := allgather(ctx, c.shadow, all, 2, tagSplit); err != nil {
		return nil, err
	}
	if color < 0 {
		return nil, nil
	}
	var members []int
	for r := range c.Size() {
		if all[2*r] == int64(color) {
			members = append(members, r)
		}
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	group := make([]int32, len(members))
	for i, r := range members {
		group[i] = c.group[r]
	}
	return c.derive(ctx, "split", group, slices.Index(members, c.rank), id)
}

// Node makes a communicator of the ranks that run on this rank's host, in the
// order of their ranks. Collective over c.
func (c *Comm) Node(ctx context.Context) (*Comm, error) {
	first := make(map[string]int)
	for r := range c.Size() {
		if _, ok := first[c.Host(r)]; !ok {
			first[c.Host(r)] = r
		}
	}
	return c.Split(ctx, first[c.Host(c.rank)], c.rank)
}

// agreeContext finds a context id that is free on every member: the largest
// that any of them would take next. Two goroutines that make communicators at
// the same time may meet at one number; then only one of them claims it on each rank, and
// whoever did not get it everywhere tries the next.
func (c *Comm) agreeContext(ctx context.Context) (uint32, error) {
	for {
		id, err := c.maximum(ctx, c.dev.nextContext())
		if err != nil {
			return 0, err
		}
		var refused uint32
		if !c.dev.claimContext(id) {
			refused = 1
		}
		if refused, err = c.maximum(ctx, refused); err != nil {
			return 0, err
		}
		if refused == 0 {
			return id, nil
		}
	}
}

// maximum is the largest of the members' values. The maximum is idempotent,
// so dissemination works for every size.
func (c *Comm) maximum(ctx context.Context, value uint32) (uint32, error) {
	s := c.shadow
	mine, theirs := []uint32{value}, make([]uint32, 1)
	for step := 1; step < s.Size(); step *= 2 {
		to, from := (s.rank+step)%s.Size(), (s.rank-step+s.Size())%s.Size()
		if _, err := Sendrecv(ctx, s, mine, to, tagAgree, theirs, from, tagAgree); err != nil {
			return 0, err
		}
		mine[0] = max(mine[0], theirs[0])
	}
	return mine[0], nil
}

// allgather fills all, n elements for each rank, of which the caller has set
// its own. Bruck's algorithm (Bruck et al. 1997): ⌈log₂P⌉ rounds.
func allgather[T Elem](ctx context.Context, c *Comm, all []T, n, tag int) error {
	p := c.Size()
	buf := make([]T, p*n)
	copy(buf, all[c.rank*n:(c.rank+1)*n])
	for have := 1; have < p; have *= 2 {
		count := min(have, p-have)
		to, from := (c.rank-have+p)%p, (c.rank+have)%p
		if _, err := Sendrecv(ctx, c, buf[:count*n], to, tag, buf[have*n:(have+count)*n], from, tag); err != nil {
			return err
		}
	}
	for i := range p {
		r := (c.rank + i) % p
		copy(all[r*n:(r+1)*n], buf[i*n:(i+1)*n])
	}
	return nil
}
