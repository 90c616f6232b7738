package mpi

import (
	"cmp"
	"context"
	"slices"
)

// Split makes a communicator for each color: its members are the ranks that
// gave that color, ordered by key, then by rank. A rank with a negative color (Undefined)
// gets nil. Collective over c; cost 3⌈log₂P⌉ rounds.
func (c *Comm) Split(ctx context.Context, color, key int) (_ *Comm, err error) {
	k := c.beginChild(collectiveSplit)
	defer func() { k.end(err) }()
	all := make([]uint64, 2*c.Size())
	all[2*c.rank], all[2*c.rank+1] = uint64(color), uint64(key)
	if err := k.allgather(ctx, all, 2); err != nil {
		return nil, err
	}
	if color < 0 {
		return k.derive(ctx, c, nil, 0)
	}
	var members []int
	for r := range c.Size() {
		if int(all[2*r]) == color {
			members = append(members, r)
		}
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(int(all[2*a+1]), int(all[2*b+1])) })
	group := make([]int32, len(members))
	for i, r := range members {
		group[i] = c.group[r]
	}
	return k.derive(ctx, c, group, slices.Index(members, c.rank))
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
