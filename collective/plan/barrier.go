package plan

// dissemination: in round k every rank signals the one 2ᵏ further on and
// awaits the one 2ᵏ before; ⌈log₂P⌉ rounds for any P.
//
// Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
func dissemination(p *Problem) *Plan {
	b := newBuilder(p, "dissemination")
	disseminate(b, everyone(p))
	return b.done()
}

func disseminate(b *builder, g group) {
	for d := 1; d < g.size; d *= 2 {
		b.signal(g.rank(g.me + d))
		b.await(g.rank(g.me - d))
		b.next()
	}
}

// doublingBarrier: pairs at distance 2ᵏ meet; ranks beyond the largest power
// of two report to a partner before and are released by it after.
//
// Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4.5 (pattern).
func doublingBarrier(p *Problem) *Plan {
	b := newBuilder(p, "doubling")
	p2 := below2(p.Size)
	switch {
	case p.Rank >= p2:
		b.signal(p.Rank - p2)
		b.next()
		b.await(p.Rank - p2)
		return b.done()
	case p.Rank+p2 < p.Size:
		b.await(p.Rank + p2)
		b.next()
	}
	for d := 1; d < p2; d *= 2 {
		b.signal(p.Rank ^ d)
		b.await(p.Rank ^ d)
		b.next()
	}
	if p.Rank+p2 < p.Size {
		b.signal(p.Rank + p2)
	}
	return b.done()
}

// nodeBarrier: the ranks of a node report to their leader along a binomial
// tree, the leaders disseminate, and the tree is walked back.
func nodeBarrier(p *Problem) *Plan {
	b := newBuilder(p, "node+dissemination")
	local, leaders, isLeader := p.hierarchy(0)
	tree := binomialTree(local.me, local.size)
	for i := len(tree.children) - 1; i >= 0; i-- {
		b.await(local.rank(tree.children[i].member))
	}
	b.next()
	if tree.parent >= 0 {
		b.signal(local.rank(tree.parent))
		b.next()
		b.await(local.rank(tree.parent))
		b.next()
	}
	if isLeader {
		disseminate(b, leaders)
	}
	for _, c := range tree.children {
		b.signal(local.rank(c.member))
	}
	return b.done()
}
