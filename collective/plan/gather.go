package plan

// gatherLinear: everybody sends to the root; one step, P-1 messages into one rank.
func gatherLinear(p *Problem) *Plan {
	b := newBuilder(p, "linear")
	l := p.blocks()
	if p.Rank != p.Root {
		b.put(p.Root, Loc{Send, 0}, l.n(p.Rank))
		return b.done()
	}
	p.own(b.beside, l)
	for i := 1; i < p.Size; i++ {
		r := (p.Root + i) % p.Size
		b.get(r, Loc{Recv, l.off(r)}, l.n(r))
	}
	return b.done()
}

// gatherBinomial: blocks are collected up a binomial tree; ⌈log₂P⌉ steps.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.3 (scatter reversed).
func gatherBinomial(p *Problem) *Plan {
	b := newBuilder(p, "binomial")
	l := p.blocks()
	g := everyone(p).from(p.Root)
	t := binomialTree(g.me, g.size)
	at := p.treeMemory(b, l, t, p.Rank == p.Root)
	if p.Rank == p.Root {
		p.own(b.beside, l)
	} else if len(t.children) == 0 {
		at = func(int) Loc { return Loc{Send, 0} }
	} else {
		b.beside(at(p.Rank), Loc{Send, 0}, l.n(p.Rank))
	}
	for i := len(t.children) - 1; i >= 0; i-- {
		c := t.children[i]
		for _, s := range p.subtreeRuns(l, c.member, c.size) {
			b.get(g.rank(c.member), at(s.rank), s.n)
		}
	}
	b.next()
	if t.parent >= 0 {
		for _, s := range p.subtreeRuns(l, g.me, t.size) {
			b.put(g.rank(t.parent), at(s.rank), s.n)
		}
	}
	return b.done()
}

// run is the memory of consecutive ranks' blocks, from a rank on.
type run struct{ rank, n int }

// subtreeRuns lists the blocks of size members from member on (counted from
// the root): two runs where they wrap past the last rank.
func (p *Problem) subtreeRuns(l layout, member, size int) []run {
	first := mod(p.Root+member, p.Size)
	s := l.ring(first, size)
	if s[1].n == 0 {
		return []run{{first, s[0].n}}
	}
	if s[0].n == 0 {
		return []run{{0, s[1].n}}
	}
	return []run{{first, s[0].n}, {0, s[1].n}}
}

// treeMemory says where a member of a gather or scatter tree keeps the block of a
// rank: at its place in the user's buffer at the root, else in scratch, in the order of the tree.
func (p *Problem) treeMemory(b *builder, l layout, t tree, isRoot bool) func(rank int) Loc {
	if isRoot {
		buf := Recv
		if p.Kind == Scatter {
			buf = Send
		}
		return func(rank int) Loc { return Loc{buf, l.off(rank)} }
	}
	s := l.ring(p.Rank, t.size)
	var w Loc
	if t.size > 1 {
		w = b.work(s[0].n + s[1].n)
	}
	return func(rank int) Loc {
		if rank >= p.Rank {
			return w.at(l.off(rank) - l.off(p.Rank))
		}
		return w.at(l.total() - l.off(p.Rank) + l.off(rank))
	}
}

// gatherTree collects the blocks of l in buf of member 0. Each member's own block
// lies at its place in own; others come to their places in buf.
func (b *builder) gatherTree(g group, l layout, own, buf Loc) {
	t := binomialTree(g.me, g.size)
	if t.parent < 0 || len(t.children) > 0 {
		b.beside(buf.at(l.off(g.me)), own.at(l.off(g.me)), l.n(g.me))
		own = buf
	}
	for i := len(t.children) - 1; i >= 0; i-- {
		c := t.children[i]
		b.get(g.rank(c.member), buf.at(l.off(c.member)), l.off(c.member+c.size)-l.off(c.member))
	}
	b.next()
	if t.parent >= 0 {
		b.put(g.rank(t.parent), own.at(l.off(g.me)), l.off(g.me+t.size)-l.off(g.me))
		b.next()
	}
}

// scatterTree hands the blocks of l, all at member 0 in src, down a binomial
// tree; each member receives those of its subtree at their places in dst.
func (b *builder) scatterTree(g group, l layout, src, dst Loc) {
	t := binomialTree(g.me, g.size)
	if t.parent >= 0 {
		b.get(g.rank(t.parent), dst.at(l.off(g.me)), l.off(g.me+t.size)-l.off(g.me))
		b.next()
		src = dst
	}
	for _, c := range t.children {
		b.put(g.rank(c.member), src.at(l.off(c.member)), l.off(c.member+c.size)-l.off(c.member))
	}
	b.next()
}

// scatterLinear: the root sends each rank its block; one step.
func scatterLinear(p *Problem) *Plan {
	b := newBuilder(p, "linear")
	l := p.blocks()
	if p.Rank != p.Root {
		b.get(p.Root, Loc{Recv, 0}, l.n(p.Rank))
		return b.done()
	}
	for i := 1; i < p.Size; i++ {
		r := (p.Root + i) % p.Size
		b.put(r, Loc{Send, l.off(r)}, l.n(r))
	}
	p.keep(b, l)
	return b.done()
}

// keep copies the root's own block of a scatter.
func (p *Problem) keep(b *builder, l layout) {
	if !p.InPlace {
		b.beside(Loc{Recv, 0}, Loc{Send, l.off(p.Root)}, l.n(p.Root))
	}
}

// scatterBinomial: blocks go down a binomial tree; ⌈log₂P⌉ steps.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.3.
func scatterBinomial(p *Problem) *Plan {
	b := newBuilder(p, "binomial")
	l := p.blocks()
	g := everyone(p).from(p.Root)
	t := binomialTree(g.me, g.size)
	at := p.treeMemory(b, l, t, p.Rank == p.Root)
	if t.size == 1 && p.Rank != p.Root {
		b.get(g.rank(t.parent), Loc{Recv, 0}, l.n(p.Rank))
		return b.done()
	}
	if t.parent >= 0 {
		for _, s := range p.subtreeRuns(l, g.me, t.size) {
			b.get(g.rank(t.parent), at(s.rank), s.n)
		}
		b.next()
	}
	for _, c := range t.children {
		for _, s := range p.subtreeRuns(l, c.member, c.size) {
			b.put(g.rank(c.member), at(s.rank), s.n)
		}
	}
	if p.Rank == p.Root {
		p.keep(b, l)
	} else {
		b.beside(Loc{Recv, 0}, at(p.Rank), l.n(p.Rank))
	}
	return b.done()
}
