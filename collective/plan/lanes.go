package plan

import "slices"

// Collectives on blocks in lanes: rank i of every node together are lane i, and all
// lanes cross the network at once. Data first move inside the nodes to the lane of their
// destination, then along the lane, so that a rank has partners on its node and
// in its lane only. There are as many lanes as ranks on the fullest node; on nodes with fewer
// ranks some take part in two or more, the first of which is the lane of their own blocks.
//
// Träff, Hunold, "Decomposing MPI collectives for exploiting multi-lane communication", 2020.

// lanes says which lane every rank belongs to, and which rank of a node serves each lane.
type lanes struct {
	*Nodes
	count int
	node  int
	local group
	mine  held // lanes this rank takes part in
}

func (p *Problem) lanes() lanes {
	members := p.Nodes.Members[p.Nodes.Of[p.Rank]]
	l := lanes{Nodes: p.Nodes, count: p.Nodes.Largest(), node: int(p.Nodes.Of[p.Rank])}
	l.local = among(members, indexOf(members, p.Rank))
	l.mine = heldBy(l.local.me, len(members), l.count)
	return l
}

// member is the rank of a node in lane j, and whether it is the lane of its own blocks.
func (l *lanes) member(node, j int) (rank int, own bool) {
	members := l.Members[node]
	i := ((j+1)*len(members) - 1) / l.count
	return int(members[i]), firstSlice(i, len(members), l.count) == j
}

// along is lane j as a group, whose members are counted by node.
func (l *lanes) along(j int) group {
	return group{me: l.node, size: len(l.Members), to: func(node int) int {
		rank, _ := l.member(node, j)
		return rank
	}}
}

// order lists all ranks by lane, within it by node; the ranks of lane j are
// ranks[ends[j]:ends[j+1]].
func (l *lanes) order() (ranks []int32, ends []int) {
	ends = make([]int, l.count+1)
	for j := range l.count {
		for node := range l.Members {
			if rank, own := l.member(node, j); own {
				ranks = append(ranks, int32(rank))
			}
		}
		ends[j+1] = len(ranks)
	}
	return ranks, ends
}

// laid says how blocks lie in the order of lanes, each lane's in the order of nodes.
type laid struct {
	ranks  []int32  // owners of the blocks, in the order of lanes
	ends   []int    // where the blocks of each lane end, in elements
	byLane []layout // a lane's blocks by node
	held   layout   // what each member of this rank's node holds, in elements
}

func (l *lanes) lay(blocks layout) laid {
	d := laid{ends: make([]int, l.count+1), byLane: make([]layout, l.count)}
	var ranks []int
	d.ranks, ranks = l.order()
	for j := range l.count {
		counts := make([]int, len(l.Members))
		for _, rank := range d.ranks[ranks[j]:ranks[j+1]] {
			counts[l.Of[rank]] = blocks.n(int(rank))
		}
		d.byLane[j] = laidOut(counts)
		d.ends[j+1] = d.ends[j] + d.byLane[j].total()
	}
	d.held = layout{size: l.local.size, offs: make([]int, l.local.size+1)}
	for i := range d.held.offs {
		d.held.offs[i] = d.ends[firstSlice(i, l.local.size, l.count)]
	}
	return d
}

// reduceScatterLanes: blocks are reduced inside the nodes to their lanes and then along
// these; ⌈log₂L⌉+⌈log₂N⌉ steps for N nodes of L ranks, and each node sends (N-1)/N of the data. The operator must commute.
func reduceScatterLanes(p *Problem) *Plan {
	b := newBuilder(p, "node+lanes")
	l, blocks := p.lanes(), p.blocks()
	d, w := l.lay(blocks), b.work(blocks.total())
	at := 0
	for _, rank := range d.ranks {
		n := blocks.n(int(rank))
		b.copy(w.at(at), Loc{Send, blocks.off(int(rank))}, n)
		at += n
	}
	b.reduceScatterAny(l.local, d.held, w, w, w.at(d.held.off(l.local.me)))
	b.next()
	b.alongEach(p, l, func(stage *builder, j int) {
		// In a lane that is not the one of this rank's own block, no result is left for this rank.
		lane := w.at(d.ends[j])
		stage.reduceScatterCirculant(l.along(j), d.byLane[j], halvingSkips(len(l.Members)), lane, lane, Loc{Recv, 0})
	})
	return b.done()
}

// allgatherLanes is reduceScatterLanes backwards: blocks are collected along the lanes and then inside the nodes. Where
// ranks are dealt to the nodes in turn, lanes are runs of ranks, and every block is received in its place.
func allgatherLanes(p *Problem) *Plan {
	b := newBuilder(p, "node+lanes")
	l, blocks := p.lanes(), p.blocks()
	d, w := l.lay(blocks), Loc{Recv, 0}
	p.own(b.copy, blocks)
	if !slices.IsSorted(d.ranks) {
		w = b.work(blocks.total())
		own := firstSlice(l.local.me, l.local.size, l.count) // lane
		b.copy(w.at(d.ends[own]+d.byLane[own].off(l.node)), Loc{Recv, blocks.off(p.Rank)}, blocks.n(p.Rank))
	}
	b.alongEach(p, l, func(stage *builder, j int) {
		stage.allgatherCirculant(l.along(j), d.byLane[j], halvingSkips(len(l.Members)), w.at(d.ends[j]))
	})
	b.allgatherAny(l.local, d.held, w)
	b.place(d.ranks, blocks, w)
	return b.done()
}

// alongEach runs a stage along each lane of this rank, at once.
func (b *builder) alongEach(p *Problem, l lanes, along func(stage *builder, j int)) {
	var t timeline
	for j := l.mine.lo; j < l.mine.hi; j++ {
		stage := newBuilder(p, "")
		stage.still = true
		along(stage, j)
		t.place(0, stage.done())
	}
	b.merge(t)
}

// alltoallLanes: every rank hands its blocks to the members of its node by
// lane, who send them along; P/N+N-2 messages a rank instead of P-1, for short blocks.
//
// There is no such plan for blocks that differ (alltoallv). A rank knows its own SendCounts and
// RecvCounts only, and the lengths and places of steps are fixed when a plan is made, but what a neighbour
// hands over in the first phase depends on the neighbour's SendCounts for all ranks of this one's lanes.
//
//   - The counts would have to be exchanged in the node first: L-1 messages for L ranks, P·(L-1)/L counts
//     a rank, one more phase, and that in every call: plans are kept by a rank's own counts, and none can tell
//     whether the others' have changed. What follows could only be planned after that, in each call, in time
//     proportional to P.
//   - Ranks could not agree when to do so. Prices must be the same on all ranks, and of the sizes
//     of an alltoallv they have nothing in common (Problem.TotalBytes is 0), while lanes, which send each
//     block twice and copy it twice, pay for short blocks only. To agree would take an allreduce of the largest count.
func alltoallLanes(p *Problem) *Plan {
	b := newBuilder(p, "node+lanes")
	l, n := p.lanes(), p.Count
	order, ends := l.order()
	// Where the blocks for each member's lanes begin in that order.
	first := make([]int, l.local.size+1)
	for i := range first {
		first[i] = ends[firstSlice(i, l.local.size, l.count)]
	}
	packed := b.work(p.Size * n)
	for k, rank := range order {
		b.copy(packed.at(k*n), Loc{Send, int(rank) * n}, n)
	}
	me := l.local.me
	to := order[first[me]:first[me+1]] // whom this rank's lanes lead to
	landed := b.work(l.local.size * len(to) * n)
	for i := 1; i < l.local.size; i++ {
		peer := mod(me+i, l.local.size)
		b.put(l.local.rank(peer), packed.at(first[peer]*n), (first[peer+1]-first[peer])*n)
		from := mod(me-i, l.local.size)
		b.get(l.local.rank(from), landed.at(from*len(to)*n), len(to)*n)
	}
	b.next()
	// From order of sources to order of destinations.
	outgoing := b.work(l.local.size * len(to) * n)
	for k := range to {
		for i := range l.local.size {
			src := landed.at((i*len(to) + k) * n)
			if i == me {
				src = packed.at((first[me] + k) * n)
			}
			b.copy(outgoing.at((k*l.local.size+i)*n), src, n)
		}
	}
	b.alongLanes(p, l, to, outgoing)
	return b.done()
}

// alongLanes sends what this node has for each of the ranks `to`, and receives
// from each node what it has for this rank.
func (b *builder) alongLanes(p *Problem, l lanes, to []int32, outgoing Loc) {
	n, nodes := p.Count, len(l.Members)
	// A node's blocks land in place where its ranks are consecutive.
	consecutive := func(ranks []int32) bool { return int(ranks[len(ranks)-1]-ranks[0]) == len(ranks)-1 }
	landing := make([]Loc, nodes)
	for node, ranks := range l.Members {
		landing[node] = Loc{Recv, int(ranks[0]) * n}
		if !consecutive(ranks) {
			landing[node] = b.work(len(ranks) * n)
		}
	}
	for k, rank := range to {
		if int(rank) == p.Rank {
			b.copy(landing[l.node], outgoing.at(k*l.local.size*n), l.local.size*n)
		}
	}
	for t := 1; t < nodes; t++ {
		target := mod(l.node+t, nodes)
		for k, rank := range to {
			if int(l.Of[rank]) == target {
				b.put(int(rank), outgoing.at(k*l.local.size*n), l.local.size*n)
			}
		}
		source := mod(l.node-t, nodes)
		from, _ := l.member(source, l.mine.lo)
		b.get(from, landing[source], len(l.Members[source])*n)
		if t%laneWindow == 0 {
			b.next()
		}
	}
	b.next()
	for node, ranks := range l.Members {
		if consecutive(ranks) {
			continue
		}
		for i, rank := range ranks {
			b.copy(Loc{Recv, int(rank) * n}, landing[node].at(i*n), n)
		}
	}
}

// laneWindow is how many messages of an alltoall are under way at once.
const laneWindow = 32
