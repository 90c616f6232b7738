package plan

// scanDoubling: in step k every rank sends what it has accumulated to the
// one 2ᵏ further on; ⌈log₂P⌉ steps of the whole vector.
//
// Hillis, Steele, "Data parallel algorithms", 1986.
func scanDoubling(p *Problem) *Plan {
	b := newBuilder(p, "doubling")
	b.scanDoubling(everyone(p), Loc{Send, 0}, Loc{Recv, 0}, p.Count)
	return b.done()
}

// scanDoubling leaves in acc of each member the n elements at `in` of the members up to it, combined.
func (b *builder) scanDoubling(g group, in, acc Loc, n int) {
	var w Loc
	if g.me > 0 {
		w = b.work(n)
	} else {
		b.beside(acc, in, n)
	}
	mine := in // until there is more
	for d := 1; d < g.size; d *= 2 {
		b.shift(g, d, mine, w, n)
		if g.me >= d {
			b.combine(acc, w, mine, n)
			mine = acc
		}
	}
	b.catchUp() // a group of one has had no round
}

// shift sends acc to the member d further on and receives w from the one d before.
func (b *builder) shift(g group, d int, acc, w Loc, n int) {
	if g.me+d < g.size {
		b.put(g.rank(g.me+d), acc, n)
	}
	if g.me >= d {
		b.get(g.rank(g.me-d), w, n)
	}
	b.next()
}

// exscanDoubling keeps two values: with and without this rank's operand.
//
// Hillis, Steele 1986.
func exscanDoubling(p *Problem) *Plan {
	b := newBuilder(p, "doubling")
	b.exscanDoubling(everyone(p), Loc{Send, 0}, Loc{Recv, 0}, p.Count)
	return b.done()
}

// exscanDoubling leaves in out of each member but the first the n elements at `in` of those before it, combined. `in`
// and out may be the same memory.
func (b *builder) exscanDoubling(g group, in, out Loc, n int) {
	var acc, w Loc
	if g.me > 0 {
		acc, w = b.work(n), b.work(n)
	}
	mine := in // until there is more
	for d := 1; d < g.size; d *= 2 {
		b.shift(g, d, mine, w, n)
		if g.me < d {
			continue
		}
		if 2*d < g.size {
			b.combine(acc, w, mine, n)
			mine = acc
		}
		if d == 1 {
			b.copy(out, w, n)
		} else {
			b.combine(out, w, out, n)
		}
	}
}

// scanChain returns the planner of the pipelined chain: prefixes travel from rank to rank in
// segments; P-2+m steps of 1/m of the vector.
func scanChain(segmentBytes int) func(*Problem) *Plan {
	return func(p *Problem) *Plan {
		b := newBuilder(p, chainName(segmentBytes))
		n, segment := p.Count, p.segment(segmentBytes)
		src := Loc{Recv, 0}
		if p.Rank == 0 {
			src = Loc{Send, 0}
		}
		for lo := 0; lo < n+segment; lo += segment {
			if p.Rank == 0 && lo == segment {
				b.beside(Loc{Recv, 0}, src, n)
			}
			if p.Rank > 0 && lo < n {
				b.foldLeft(p.Rank-1, Loc{Recv, lo}, Loc{Send, lo}, min(segment, n-lo))
			}
			if p.Rank < p.Size-1 && lo > 0 {
				b.putParts(p.Rank+1, src.at(lo-segment), min(segment, n-lo+segment))
			}
			b.next()
		}
		return b.done()
	}
}

// exscanChain is scanChain with the prefix received and passed on in two buffers.
func exscanChain(segmentBytes int) func(*Problem) *Plan {
	return func(p *Problem) *Plan {
		b := newBuilder(p, chainName(segmentBytes))
		n, segment := p.Count, p.segment(segmentBytes)
		in, acc := Loc{Send, 0}, Loc{Send, 0}
		if p.Rank > 0 && p.Rank < p.Size-1 {
			acc = b.work(n)
			if p.InPlace {
				in = b.work(n)
				b.copy(in, Loc{Send, 0}, n)
			}
		}
		for lo := 0; lo < n+segment; lo += segment {
			if m := min(segment, n-lo+segment); lo > 0 && p.Rank < p.Size-1 {
				if p.Rank > 0 {
					b.combine(acc.at(lo-segment), Loc{Recv, lo - segment}, in.at(lo-segment), m)
				}
				b.put(p.Rank+1, acc.at(lo-segment), m)
			}
			if p.Rank > 0 && lo < n {
				b.get(p.Rank-1, Loc{Recv, lo}, min(segment, n-lo))
			}
			b.next()
		}
		return b.done()
	}
}

// The scans in two levels: a scan inside each node; then an exclusive scan of the nodes' totals by the last rank of each
// node, whose result is broadcast inside the node and combined with what is there, on the left. The ranks of a node must be
// consecutive.
//
// Sanders, Träff, "Parallel prefix (scan) algorithms for MPI", 2006 (clusters of SMP nodes).

// scanNode: ⌈log₂N⌉ steps among N nodes, in which each sends one vector.
func scanNode(p *Problem) *Plan {
	b := newBuilder(p, "node+doubling")
	local, lasts := p.succession()
	out, n := Loc{Recv, 0}, p.Count
	b.within(func() { b.scanDoubling(local, Loc{Send, 0}, out, n) })
	if before, ok := b.precede(local, lasts, out, n); ok {
		b.combine(out, before, out, n)
	}
	return b.done()
}

// exscanNode is scanNode with an exclusive scan inside the nodes. The last rank of each node adds its own operand to what
// that gives: this is the total for the nodes after its own.
func exscanNode(p *Problem) *Plan {
	b := newBuilder(p, "node+doubling")
	local, lasts := p.succession()
	in, out, n := Loc{Send, 0}, Loc{Recv, 0}, p.Count
	total := in
	if local.me > 0 && local.me == local.size-1 {
		total = b.work(n)
		b.copy(total, in, n) // in place, out will have written over it
	}
	b.within(func() { b.exscanDoubling(local, in, out, n) })
	if total != in {
		b.combine(total, out, total, n)
	}
	before, ok := b.precede(local, lasts, total, n)
	switch {
	case !ok:
	case local.me == 0:
		b.copy(out, before, n)
	default:
		b.combine(out, before, out, n)
	}
	return b.done()
}

// succession is this rank's node and the last ranks of all nodes, both in the order of ranks.
func (p *Problem) succession() (local, lasts group) {
	node := int(p.Nodes.Of[p.Rank])
	members := p.Nodes.Members[node]
	lasts = group{me: node, size: len(p.Nodes.Members), to: func(m int) int {
		ranks := p.Nodes.Members[m]
		return int(ranks[len(ranks)-1])
	}}
	return among(members, indexOf(members, p.Rank)), lasts
}

// precede leaves the totals of all earlier nodes, combined, in before on every rank of a node. ok is false on the first
// node, which has none before it. A node's total is the n elements at total on its last rank.
func (b *builder) precede(local, lasts group, total Loc, n int) (before Loc, ok bool) {
	ok = lasts.me > 0
	if ok {
		before = b.work(n)
	}
	last := local.size - 1
	if local.me == last {
		b.exscanDoubling(lasts, total, before, n)
	}
	if ok {
		b.bcastTree(local.from(last), before, n)
	}
	return before, ok
}
