package plan

// output says where a reduce-scatter leaves this rank's block. In place the
// result would overwrite operands that are still needed, so it passes through scratch.
func (p *Problem) output(b *builder, n int) (out Loc, finish func()) {
	if !p.InPlace {
		return Loc{Recv, 0}, func() {}
	}
	w := b.work(n)
	return w, func() {
		b.next()
		b.copy(Loc{Recv, 0}, w, n)
	}
}

// reduceScatterHalving: pairs exchange halves, at distance P/2 first; log₂P
// steps, (P-1)/P of the data, for powers of two and operators that commute.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.4.
func reduceScatterHalving(p *Problem) *Plan {
	b := newBuilder(p, "halving")
	l := p.blocks()
	out, finish := p.output(b, l.n(p.Rank))
	b.reduceScatterButterfly(everyone(p), l, Loc{Send, 0}, b.work(l.total()), out)
	finish()
	return b.done()
}

// reduceScatterCirculant: ⌈log₂P⌉ steps and (P-1)/P of the data for any P;
// the operator must commute.
//
// Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234, 2024.
func reduceScatterCirculant(p *Problem) *Plan {
	b := newBuilder(p, "circulant")
	l := p.blocks()
	out, finish := p.output(b, l.n(p.Rank))
	b.reduceScatterCirculant(everyone(p), l, halvingSkips(p.Size), Loc{Send, 0}, b.work(l.total()), out)
	finish()
	return b.done()
}

// reduceScatterCirculant has the contract of reduceScatterButterfly, for any
// size, in a step for each skip. With R(i) the partial result for member me+i and t of these left, a
// step with skip s sends R(s..2s-1) to me+s, R(2s..3s-1) to me+2s and so on up to R(t-1), and adds what
// comes from me-s, me-2s, ... to R(0..s-1).
func (b *builder) reduceScatterCirculant(g group, l layout, skips []int, in, acc, out Loc) {
	if g.size == 1 {
		b.copy(out, in, l.total())
		return
	}
	if s := skips[0]; 2*s > g.size {
		// What the first step neither sends nor adds to.
		for _, r := range l.ring(g.me+g.size-s, 2*s-g.size) {
			b.copy(acc.at(r.off), in.at(r.off), r.n)
		}
	}
	at, t := in, g.size
	for _, s := range skips {
		for lo := s; lo < t; lo += s {
			for _, r := range l.ring(g.me+lo, min(s, t-lo)) {
				b.putParts(g.rank(g.me+lo), at.at(r.off), r.n)
			}
		}
		from := at
		for lo := s; lo < t; lo += s {
			for _, r := range l.ring(g.me, min(s, t-lo)) {
				dst, a := acc.at(r.off), from.at(r.off)
				if s == 1 {
					dst = out
					if lo > s {
						a = out
					}
				}
				b.fold(g.rank(g.me-lo), dst, a, r.n)
			}
			from = acc
		}
		b.next()
		at, t = acc, s
	}
}

// halvingSkips are the skips with the fewest messages, ⌈log₂ size⌉: each is half of the one before, rounded up.
func halvingSkips(size int) []int { return radixSkips(size, 2) }

// radixSkips divide by the radix in each step, for fewer steps of up to radix-1
// messages, as with the ports of Bruck et al. 1997.
func radixSkips(size, radix int) []int {
	var skips []int
	for t := size; t > 1; {
		t = (t + radix - 1) / radix
		skips = append(skips, t)
	}
	return skips
}

// reduceScatterRing: partial results travel around the ring, each rank adding
// its operand; P-1 steps, (P-1)/P of the data, two blocks of scratch.
//
// Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
func reduceScatterRing(p *Problem) *Plan {
	b := newBuilder(p, "ring")
	l := p.blocks()
	out, finish := p.output(b, l.n(p.Rank))
	largest := 0
	for i := range p.Size {
		largest = max(largest, l.n(i))
	}
	w := [2]Loc{b.work(largest), b.work(largest)}
	b.reduceScatterRing(everyone(p), l, Loc{Send, 0}, func(block, t int) Loc { return w[t%2] }, out)
	finish()
	return b.done()
}

// reduceScatterRing keeps the partial result of a block in step t at acc(block, t).
func (b *builder) reduceScatterRing(g group, l layout, in Loc, acc func(block, t int) Loc, out Loc) {
	if g.size == 1 {
		b.copy(out, in, l.total())
		return
	}
	for t := range g.size - 1 {
		away, next := mod(g.me-1-t, g.size), mod(g.me-2-t, g.size)
		src := in.at(l.off(away))
		if t > 0 {
			src = acc(away, t-1)
		}
		dst := acc(next, t)
		if next == g.me {
			dst = out
		}
		b.putParts(g.rank(g.me+1), src, l.n(away))
		b.fold(g.rank(g.me-1), dst, in.at(l.off(next)), l.n(next))
		b.next()
	}
}

// reduceScatterPairwise: every rank sends every other rank that one's block; P-1 steps. It keeps the order of operands:
// those of lower ranks and those of higher ranks are accumulated apart.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.4.
func reduceScatterPairwise(p *Problem) *Plan {
	b := newBuilder(p, "pairwise")
	l := p.blocks()
	me, n := p.Rank, l.n(p.Rank)
	out, finish := p.output(b, n)
	if p.Size == 1 {
		b.copy(out, Loc{Send, 0}, n)
		finish()
		return b.done()
	}
	low := Loc{Send, l.off(me)} // operands of ranks up to me
	var w Loc                   // operands of ranks after me
	// What the last rank sends starts an accumulator; the rest is folded in.
	give := b.putParts
	if me == p.Size-1 {
		give = b.put
	}
	for t := 1; t < p.Size; t++ {
		to, from := (me+t)%p.Size, mod(me-t, p.Size)
		give(to, Loc{Send, l.off(to)}, l.n(to))
		switch {
		case from < me:
			b.foldLeft(from, out, low, n)
			low = out
		case from == p.Size-1:
			w = b.work(n)
			b.get(from, w, n)
		default:
			b.foldLeft(from, w, w, n)
		}
		b.next()
	}
	if me < p.Size-1 {
		b.combine(out, low, w, n)
	}
	finish()
	return b.done()
}

// reduceScatterViaReduce: reduce to rank 0, then scatter; for short data and
// operators that do not commute.
func reduceScatterViaReduce(p *Problem) *Plan {
	b := newBuilder(p, "reduce+scatter")
	l := p.blocks()
	g := everyone(p)
	t := binomialTree(p.Rank, p.Size)
	w := Loc{Send, 0}
	if p.Rank == 0 || t.size > 1 {
		w = b.work(l.total())
	}
	b.reduceTree(g, Loc{Send, 0}, w, l.total())
	if p.Size == 1 {
		b.copy(Loc{Recv, 0}, w, l.total())
		return b.done()
	}
	if t.parent >= 0 {
		if t.size == 1 {
			b.get(t.parent, Loc{Recv, 0}, l.n(p.Rank))
			return b.done()
		}
		b.get(t.parent, w.at(l.off(p.Rank)), l.off(p.Rank+t.size)-l.off(p.Rank))
		b.next()
	}
	b.copy(Loc{Recv, 0}, w.at(l.off(p.Rank)), l.n(p.Rank))
	for _, c := range t.children {
		b.put(c.member, w.at(l.off(c.member)), l.off(c.member+c.size)-l.off(c.member))
	}
	return b.done()
}
