package plan

import "slices"

// own puts this rank's block at its place in Recv, by a builder's copy or beside.
func (p *Problem) own(by func(dst, src Loc, n int), l layout) {
	by(Loc{Recv, l.off(p.Rank)}, p.mine(l), l.n(p.Rank))
}

// allgatherRing: every block travels once around the ring; P-1 steps, each
// rank sends (P-1)/P of the result.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.1.
func allgatherRing(p *Problem) *Plan {
	b := newBuilder(p, "ring")
	l := p.blocks()
	b.allgatherRing(everyone(p), l, p.mine(l), Loc{Recv, 0})
	return b.done()
}

// mine is where this rank's block lies at first, and is sent from.
func (p *Problem) mine(l layout) Loc {
	if p.InPlace {
		return Loc{Recv, l.off(p.Rank)}
	}
	return Loc{Send, 0}
}

// allgatherRing: on entry each member has its block of l in mine, which may be its place in buf.
func (b *builder) allgatherRing(g group, l layout, mine, buf Loc) {
	from := mine
	b.beside(buf.at(l.off(g.me)), mine, l.n(g.me))
	for t := range g.size - 1 {
		in := mod(g.me-t-1, g.size)
		b.put(g.rank(g.me+1), from, l.n(mod(g.me-t, g.size)))
		from = buf.at(l.off(in))
		b.get(g.rank(g.me-1), from, l.n(in))
		b.next()
	}
}

// allgatherDoubling: pairs at distance 2ᵏ exchange all they have; log₂P
// steps, for powers of two only.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.1.
func allgatherDoubling(p *Problem) *Plan {
	b := newBuilder(p, "doubling")
	l := p.blocks()
	from := p.mine(l)
	p.own(b.beside, l)
	for d := 1; d < p.Size; d *= 2 {
		mine := p.Rank &^ (d - 1)
		theirs := mine ^ d
		b.put(p.Rank^d, from, l.off(mine+d)-l.off(mine))
		b.get(p.Rank^d, Loc{Recv, l.off(theirs)}, l.off(theirs+d)-l.off(theirs))
		b.next()
		from = Loc{Recv, l.off(min(mine, theirs))}
	}
	return b.done()
}

// allgatherBruck: ⌈log₂P⌉ steps for any P. Blocks are collected in scratch,
// this rank's first, and turned to their places at the end: one message per
// step, for short blocks.
//
// Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in
// multiport message-passing systems", 1997, section 4.
func allgatherBruck(p *Problem) *Plan {
	b := newBuilder(p, "bruck")
	l := p.blocks()
	me := p.Rank
	w := b.work(l.total())
	from := p.mine(l)
	b.beside(w, from, l.n(me))
	// held(i, k) is the length of the k blocks from block i on.
	held := func(i, k int) int {
		s := l.ring(i, k)
		return s[0].n + s[1].n
	}
	for k := 1; k < p.Size; k *= 2 {
		m := min(k, p.Size-k)
		b.put(mod(me-k, p.Size), from, held(me, m))
		b.get(mod(me+k, p.Size), w.at(held(me, k)), held(me+k, m))
		b.next()
		from = w
	}
	s := l.ring(me, p.Size)
	b.copy(Loc{Recv, s[0].off}, w, s[0].n)
	b.copy(Loc{Recv, s[1].off}, w.at(s[0].n), s[1].n)
	return b.done()
}

// allgatherCyclic: Bruck's pattern with every block received where it
// belongs, at the price of two messages where a run of blocks wraps: for long blocks.
func allgatherCyclic(p *Problem) *Plan {
	b := newBuilder(p, "cyclic")
	l := p.blocks()
	b.allgatherCyclic(everyone(p), l, p.mine(l), Loc{Recv, 0})
	return b.done()
}

// allgatherCyclic: on entry each member has its block of l in mine, which may be its place in buf.
func (b *builder) allgatherCyclic(g group, l layout, mine, buf Loc) {
	b.beside(buf.at(l.off(g.me)), mine, l.n(g.me))
	for k := 1; k < g.size; k *= 2 {
		m := min(k, g.size-k)
		if k == 1 {
			b.put(g.rank(g.me-1), mine, l.n(g.me))
		} else {
			for _, s := range l.ring(g.me, m) {
				b.put(g.rank(g.me-k), buf.at(s.off), s.n)
			}
		}
		for _, s := range l.ring(g.me+k, m) {
			b.get(g.rank(g.me+k), buf.at(s.off), s.n)
		}
		b.next()
	}
}

// allgatherCirculant is reduceScatterCirculant backwards: on entry each member
// has its block of l at its place in buf, and the last step is the longest.
//
// Träff 2024 (see reduceScatterCirculant).
func (b *builder) allgatherCirculant(g group, l layout, skips []int, buf Loc) {
	for i, s := range slices.Backward(skips) {
		t := g.size // members whose blocks this one has afterwards
		if i > 0 {
			t = skips[i-1]
		}
		for lo := s; lo < t; lo += s {
			for _, r := range l.ring(g.me, min(s, t-lo)) {
				b.put(g.rank(g.me-lo), buf.at(r.off), r.n)
			}
		}
		for lo := s; lo < t; lo += s {
			for _, r := range l.ring(g.me+lo, min(s, t-lo)) {
				b.get(g.rank(g.me+lo), buf.at(r.off), r.n)
			}
		}
		b.next()
	}
}

// allgatherNode: blocks are gathered by the leaders of the nodes, exchanged
// among them, and broadcast inside the nodes. Where the ranks of a node do not follow one another, the leaders
// exchange blocks in the order of nodes and put them in their places before the broadcast.
func allgatherNode(p *Problem) *Plan {
	b := newBuilder(p, "node+ring")
	l := p.blocks()
	p.own(b.copy, l) // it is sent from there
	local, leaders, isLeader := p.hierarchy(0)
	node := int(p.Nodes.Of[p.Rank])
	inNode, byNode := p.blocksByNode(l, node)
	all, mine := Loc{Recv, 0}, Loc{Recv, byNode.off(node)}
	switch {
	case p.Nodes.Consecutive:
	case isLeader:
		all = b.work(l.total())
		mine = all.at(byNode.off(node))
	default:
		mine = b.work(inNode.total())
	}
	b.gatherTree(local, inNode, Loc{Recv, l.off(p.Rank) - inNode.off(local.me)}, mine)
	if isLeader {
		b.allgatherRing(leaders, byNode, mine, all)
		b.place(slices.Concat(p.Nodes.Members...), l, all)
	}
	b.bcastTree(local, Loc{Recv, 0}, l.total())
	return b.done()
}

// blocksByNode is the layout of the blocks of a node's ranks, and that of the blocks of all nodes.
func (p *Problem) blocksByNode(l layout, node int) (inNode, byNode layout) {
	counts := make([]int, len(p.Nodes.Members))
	for i, ranks := range p.Nodes.Members {
		of := make([]int, len(ranks))
		for k, rank := range ranks {
			of[k] = l.n(int(rank))
			counts[i] += of[k]
		}
		if i == node {
			inNode = laidOut(of)
		}
	}
	return inNode, laidOut(counts)
}

// place copies blocks that lie packed in the order of `ranks` to their places in Recv. The blocks of ranks that follow one
// another are copied at once.
func (b *builder) place(ranks []int32, l layout, packed Loc) {
	for i, at := 0, 0; i < len(ranks); {
		first, k := int(ranks[i]), 1
		for i+k < len(ranks) && int(ranks[i+k]) == first+k {
			k++
		}
		n := l.off(first+k) - l.off(first)
		b.copy(Loc{Recv, l.off(first)}, packed.at(at), n)
		i, at = i+k, at+n
	}
}
