package mpitest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// ownCollectives compares the library's collectives with what they must give.
func ownCollectives(ctx context.Context, w *mpi.World) error {
	user := w.Comm()
	for _, c := range []*mpi.Comm{user, user.Shadow()} {
		if err := collectivesOn(ctx, c); err != nil {
			return err
		}
	}
	d, err := user.Dup(ctx)
	if err != nil {
		return err
	}
	defer d.Free()
	return collectivesOn(ctx, d)
}

func collectivesOn(ctx context.Context, c *mpi.Comm) error {
	n, ok := c.Native()
	if !ok {
		return errors.New("no collectives of the library's own")
	}
	me, p := c.Rank(), c.Size()
	int64s, b := mpi.KindOf[int64](), mpi.Bytes[int64]
	// vector is what a rank contributes; total its sum over the ranks below limit.
	vector := func(rank, length int) []int64 {
		v := make([]int64, length)
		for i := range v {
			v[i] = int64(rank*1000 + i)
		}
		return v
	}
	total := func(limit, length int) []int64 {
		sum := make([]int64, length)
		for r := range limit {
			for i, x := range vector(r, length) {
				sum[i] += x
			}
		}
		return sum
	}
	counts, all := make([]int, p), []int64{}
	for r := range counts {
		counts[r] = r + 1
		all = append(all, vector(r, r+1)...)
	}
	below := 0
	for _, k := range counts[:me] {
		below += k
	}
	var blocks, transposed []int64 // 2 elements for each rank
	for r := range p {
		blocks = append(blocks, vector(r, 2)...)
		transposed = append(transposed, vector(r, 2*p)[2*me:2*me+2]...)
	}
	scan, exscan := total(me+1, 5), total(me, 5)
	onRoot := func(v []int64) []int64 {
		if me != p-1 {
			return make([]int64, len(v))
		}
		return v
	}
	root := p - 1
	wide, own := make([]int64, 5), make([]int64, 2)
	whole, packed, mine := make([]int64, 2*p), make([]int64, len(all)), make([]int64, me+1)
	inPlace := vector(me, 5)
	sendCounts, recvCounts, columns := make([]int, p), make([]int, p), []int64{}
	for r := range p {
		sendCounts[r], recvCounts[r] = r+1, me+1
		columns = append(columns, vector(r, len(all))[below:below+me+1]...)
	}
	spread := make([]int64, len(columns))
	cases := []struct {
		name      string
		start     func() mpi.Request
		got, want []int64
	}{
		{"Barrier", n.Barrier, nil, nil},
		{"Bcast", func() mpi.Request {
			copy(wide, vector(me, 5))
			return n.Bcast(b(wide), int64s, root)
		}, wide, vector(root, 5)},
		{"Reduce", func() mpi.Request { return n.Reduce(b(vector(me, 5)), b(wide), int64s, mpi.ReduceSum, root) }, wide, onRoot(total(p, 5))},
		{"Allreduce", func() mpi.Request { return n.Allreduce(b(vector(me, 5)), b(wide), int64s, mpi.ReduceSum) }, wide, total(p, 5)},
		{"Allreduce in place", func() mpi.Request { return n.Allreduce(nil, b(inPlace), int64s, mpi.ReduceMax) }, inPlace, vector(p-1, 5)},
		{"Scan", func() mpi.Request { return n.Scan(b(vector(me, 5)), b(wide), int64s, mpi.ReduceSum) }, wide, scan},
		{"Exscan", func() mpi.Request { return n.Exscan(b(vector(me, 5)), b(wide), int64s, mpi.ReduceSum) }, wide, exscan},
		{"Allgather", func() mpi.Request { return n.Allgather(b(vector(me, 2)), b(whole), int64s) }, whole, blocks},
		{"Gather", func() mpi.Request { return n.Gather(b(vector(me, 2)), b(whole), int64s, root) }, whole, onRoot(blocks)},
		{"Scatter", func() mpi.Request { return n.Scatter(b(onRoot(blocks)), b(own), int64s, root) }, own, vector(me, 2)},
		{"Alltoall", func() mpi.Request { return n.Alltoall(b(vector(me, 2*p)), b(whole), int64s) }, whole, transposed},
		{"ReduceScatterBlock", func() mpi.Request {
			return n.ReduceScatterBlock(b(vector(me, 2*p)), b(own), int64s, mpi.ReduceSum)
		}, own, total(p, 2*p)[2*me : 2*me+2]},
		{"ReduceScatter", func() mpi.Request {
			return n.ReduceScatter(b(vector(me, len(all))), b(mine), counts, int64s, mpi.ReduceSum)
		}, mine, total(p, len(all))[below : below+me+1]},
		{"Allgatherv", func() mpi.Request { return n.Allgatherv(b(vector(me, me+1)), b(packed), counts, int64s) }, packed, all},
		{"Gatherv", func() mpi.Request { return n.Gatherv(b(vector(me, me+1)), b(packed), counts, int64s, root) }, packed, onRoot(all)},
		{"Scatterv", func() mpi.Request { return n.Scatterv(b(onRoot(all)), b(mine), counts, int64s, root) }, mine, vector(me, me+1)},
		{"Alltoallv", func() mpi.Request {
			return n.Alltoallv(b(vector(me, len(all))), b(spread), sendCounts, recvCounts, int64s)
		}, spread, columns},
	}
	for _, k := range cases {
		if k.name != "Allreduce in place" {
			clear(k.got)
		}
		if _, err := k.start().Wait(ctx); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		if k.name == "Exscan" && me == 0 {
			continue // not written
		}
		if !slices.Equal(k.got, k.want) {
			return fmt.Errorf("%s on %v: %v, want %v", k.name, c, k.got, k.want)
		}
	}
	if err := wants("short buffer", wait(ctx, n.Allreduce(make([]byte, 8), make([]byte, 16), int64s, mpi.ReduceSum)), mpi.ErrMismatch); err != nil {
		return err
	}
	if err := wants("minimum of complex numbers", wait(ctx, n.Allreduce(nil, make([]byte, 8), mpi.KindOf[complex64](), mpi.ReduceMin)), mpi.ErrUnsupported); err != nil {
		return err
	}
	return wants("root beyond the last rank", wait(ctx, n.Bcast(nil, int64s, p)), mpi.ErrRank)
}
