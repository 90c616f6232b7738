package plan

// allreduceDoubling: pairs at distance 2ᵏ exchange and combine the whole
// vector; ⌊log₂P⌋ steps, two more where P is no power of two.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.5.
func allreduceDoubling(p *Problem) *Plan {
	b := newBuilder(p, "doubling")
	b.allreduceDoubling(everyone(p), Loc{Send, 0}, Loc{Recv, 0}, p.Count)
	return b.done()
}

// allreduceDoubling reduces n elements at `in` of all members to out on all
// members, in the order of members.
func (b *builder) allreduceDoubling(g group, in, out Loc, n int) {
	if g.size == 1 {
		b.copy(out, in, n)
		return
	}
	q := g.pairOff()
	at := b.pairUp(q, in, out, n)
	if !q.joined {
		w := b.work(n)
		for d := 1; d < q.size; d *= 2 {
			peer := q.rank(q.me ^ d)
			b.put(peer, at, n)
			b.get(peer, w, n)
			b.next()
			if q.me&d == 0 {
				b.combine(out, at, w, n)
			} else {
				b.combine(out, w, at, n)
			}
			at = out
		}
		b.next()
	}
	b.pairDown(q, out, n)
}

// allreduceRabenseifner: reduce-scatter by vector halving and distance
// doubling, then the allgather that reverses it: 2log₂P steps, 2(P-1)/P of the
// vector. Neighbours exchange the largest parts and the order of operands is kept.
//
// Rabenseifner 2004, section 3; Thakur, Rabenseifner, Gropp 2005, section 4.5.
func allreduceRabenseifner(p *Problem) *Plan {
	b := newBuilder(p, "rabenseifner")
	b.allreduceHalving(everyone(p), Loc{Send, 0}, Loc{Recv, 0}, p.Count)
	return b.done()
}

func (b *builder) allreduceHalving(g group, in, out Loc, n int) {
	if g.size == 1 {
		b.copy(out, in, n)
		return
	}
	q := g.pairOff()
	at := b.pairUp(q, in, out, n)
	if !q.joined {
		l := evenly(n, q.size)
		lo, hi := 0, q.size
		for d := 1; d < q.size; d *= 2 {
			peer, half := q.rank(q.me^d), (hi-lo)/2
			keep, away, fold := lo, lo+half, b.fold
			if q.me&d != 0 { // the peer's ranks come first
				keep, away, fold = away, keep, b.foldLeft
			}
			b.putParts(peer, at.at(l.off(away)), l.off(away+half)-l.off(away))
			fold(peer, out.at(l.off(keep)), at.at(l.off(keep)), l.off(keep+half)-l.off(keep))
			b.next()
			lo, hi = keep, keep+half
			at = out
		}
		for d := q.size / 2; d > 0; d /= 2 {
			peer, held := q.rank(q.me^d), hi-lo
			other := lo + held
			if q.me&d != 0 {
				other = lo - held
			}
			b.put(peer, out.at(l.off(lo)), l.off(hi)-l.off(lo))
			b.get(peer, out.at(l.off(other)), l.off(other+held)-l.off(other))
			b.next()
			lo, hi = min(lo, other), max(hi, other+held)
		}
	}
	b.pairDown(q, out, n)
}

// allreduceRing: reduce-scatter and allgather around a ring; 2(P-1) steps of
// 1/P of the vector, each rank talking to two neighbours only.
//
// Patarasuk, Yuan 2009.
func allreduceRing(p *Problem) *Plan {
	b := newBuilder(p, "ring")
	g := everyone(p)
	l := evenly(p.Count, g.size)
	at := func(block, _ int) Loc { return Loc{Recv, l.off(block)} }
	b.reduceScatterRing(g, l, Loc{Send, 0}, at, at(g.me, 0))
	b.allgatherRing(g, l, Loc{Recv, l.off(g.me)}, Loc{Recv, 0})
	return b.done()
}

// allreduceCirculant: Träff's reduce-scatter and its reverse; 2⌈log₂P⌉ steps
// and 2(P-1)/P of the vector for any P. The operator must commute.
//
// Träff 2024 (see reduceScatterCirculant).
func allreduceCirculant(p *Problem) *Plan {
	b := newBuilder(p, "circulant")
	g, in, out := everyone(p), Loc{Send, 0}, Loc{Recv, 0}
	b.allreduceCirculant(g, evenly(p.Count, g.size), halvingSkips(g.size), in, out)
	return b.done()
}

func (b *builder) allreduceCirculant(g group, l layout, skips []int, in, out Loc) {
	b.reduceScatterCirculant(g, l, skips, in, out, out.at(l.off(g.me)))
	b.allgatherCirculant(g, l, skips, out)
}

// allreduceViaReduce: reduce and broadcast along one binomial tree.
func allreduceViaReduce(p *Problem) *Plan {
	b := newBuilder(p, "reduce+bcast")
	g := everyone(p)
	b.reduceTree(g, Loc{Send, 0}, Loc{Recv, 0}, p.Count)
	b.bcastTree(g, Loc{Recv, 0}, p.Count)
	return b.done()
}

// allreduceNode: reduced to the leaders of the nodes, doubled among them,
// broadcast inside the nodes; for short vectors.
//
// Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective
// operation performance", 2000.
func allreduceNode(p *Problem) *Plan {
	b := newBuilder(p, "node+doubling")
	local, leaders, isLeader := p.hierarchy(0)
	in, out := Loc{Send, 0}, Loc{Recv, 0}
	b.reduceTree(local, in, out, p.Count)
	if isLeader {
		b.allreduceDoubling(leaders, out, out, p.Count)
	}
	b.bcastTree(local, out, p.Count)
	return b.done()
}
