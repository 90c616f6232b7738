package plan

// home is where a rank of a reduce accumulates: the root in Recv, others in scratch.
func (p *Problem) home(b *builder, n int) Loc {
	if p.Rank == p.Root {
		return Loc{Recv, 0}
	}
	return b.work(n)
}

// reduceBinomial: partial results walk up a binomial tree; ⌈log₂P⌉ steps of
// the whole vector. Where the order of operands counts the tree is that of rank 0,
// which passes the result on to the root.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.6.
func reduceBinomial(p *Problem) *Plan {
	b := newBuilder(p, "binomial")
	g := everyone(p)
	if !p.Ordered {
		g = g.from(p.Root)
	}
	t := binomialTree(g.me, g.size)
	home := Loc{Send, 0}
	if p.Rank == p.Root || len(t.children) > 0 {
		home = p.home(b, p.Count)
	}
	b.reduceTree(g, Loc{Send, 0}, home, p.Count)
	b.deliver(p, g, home, p.Count)
	return b.done()
}

// deliver brings the result from member 0 to the root, where that is another rank.
func (b *builder) deliver(p *Problem, g group, home Loc, n int) {
	first := g.rank(0)
	switch {
	case first == p.Root:
	case p.Rank == first:
		b.put(p.Root, home, n)
	case p.Rank == p.Root:
		b.get(first, Loc{Recv, 0}, n)
	}
}

// reduceTree reduces n elements at `in` of all members to member 0, in the
// order of members. Members with children accumulate in home.
func (b *builder) reduceTree(g group, in, home Loc, n int) {
	t := binomialTree(g.me, g.size)
	if t.parent < 0 && len(t.children) == 0 {
		b.copy(home, in, n)
		return
	}
	at := in
	for i := len(t.children) - 1; i >= 0; i-- {
		b.fold(g.rank(t.children[i].member), home, at, n)
		b.next()
		at = home
	}
	if t.parent >= 0 {
		b.putParts(g.rank(t.parent), at, n)
		b.next()
	}
}

// reduceChain returns the planner of the pipelined chain: partial results
// travel from the last rank to the first in segments.
//
// Barnett, Littlefield, Payne, van de Geijn 1993.
func reduceChain(segmentBytes int) func(*Problem) *Plan {
	return func(p *Problem) *Plan {
		b := newBuilder(p, chainName(segmentBytes))
		g := everyone(p)
		if !p.Ordered {
			g = g.from(p.Root)
		}
		n, segment := p.Count, p.segment(segmentBytes)
		home := p.home(b, n)
		if g.size == 1 {
			b.copy(home, Loc{Send, 0}, n)
			return b.done()
		}
		src := home
		if g.me == g.size-1 {
			src = Loc{Send, 0}
		}
		for lo := 0; lo < n+segment; lo += segment {
			if g.me < g.size-1 && lo < n {
				b.fold(g.rank(g.me+1), home.at(lo), Loc{Send, lo}, min(segment, n-lo))
			}
			if g.me > 0 && lo > 0 {
				b.putParts(g.rank(g.me-1), src.at(lo-segment), min(segment, n-lo+segment))
			}
			b.next()
		}
		b.deliver(p, g, home, n)
		return b.done()
	}
}

// reduceRabenseifner: reduce-scatter by recursive halving, then the blocks
// are gathered up a binomial tree: 2log₂P steps, 2(P-1)/P of the vector. Ranks
// beyond the largest power of two first hand their operand to a neighbour.
//
// Rabenseifner, "Optimization of collective reduction operations", 2004, section 3.
func reduceRabenseifner(p *Problem) *Plan {
	b := newBuilder(p, "rabenseifner")
	g := everyone(p).from(p.Root)
	home, n := p.home(b, p.Count), p.Count
	q := g.pairOff()
	at := b.pairUp(q, Loc{Send, 0}, home, n)
	if q.joined {
		return b.done()
	}
	l := evenly(n, q.size)
	b.reduceScatterButterfly(q.group, l, at, home, home.at(l.off(q.me)))
	b.gatherTree(q.group, l, home, home)
	return b.done()
}

// pairUp combines the operands of pairs at the one that stays; it returns
// where this member's operand is.
func (b *builder) pairUp(q paired, in, home Loc, n int) Loc {
	switch {
	case q.partner < 0:
		return in
	case q.joined:
		b.putParts(q.partner, in, n)
		b.next()
		return in
	}
	b.fold(q.partner, home, in, n)
	b.next()
	return home
}

// pairDown hands the result to the one that joined.
func (b *builder) pairDown(q paired, out Loc, n int) {
	switch {
	case q.partner < 0:
	case q.joined:
		b.get(q.partner, out, n)
	default:
		b.put(q.partner, out, n)
	}
	b.next()
}

// reduceCirculant: Träff's reduce-scatter, then a binomial gather: 2⌈log₂P⌉
// steps and 2(P-1)/P of the vector for any P.
//
// Träff 2024 (see reduceScatterCirculant).
func reduceCirculant(p *Problem) *Plan {
	b := newBuilder(p, "circulant")
	g := everyone(p).from(p.Root)
	home := p.home(b, p.Count)
	l := evenly(p.Count, g.size)
	b.reduceScatterCirculant(g, l, halvingSkips(g.size), Loc{Send, 0}, home, home.at(l.off(g.me)))
	b.gatherTree(g, l, home, home)
	return b.done()
}

// reduceNode: inside the nodes to their leaders, then among the leaders.
func reduceNode(p *Problem) *Plan {
	b := newBuilder(p, "node+binomial")
	root := p.Root
	if p.Ordered {
		root = 0
	}
	local, leaders, isLeader := p.hierarchy(root)
	home, n := p.home(b, p.Count), p.Count
	b.reduceTree(local, Loc{Send, 0}, home, n)
	if isLeader {
		b.reduceTree(leaders, home, home, n)
	}
	b.deliver(p, leaders, home, n)
	return b.done()
}
