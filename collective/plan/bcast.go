package plan

import "fmt"

// bcastBinomial: the message walks down a binomial tree from the root;
// ⌈log₂P⌉ steps of the whole message.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.3.
func bcastBinomial(p *Problem) *Plan {
	b := newBuilder(p, "binomial")
	b.bcastTree(everyone(p).from(p.Root), Loc{Recv, 0}, p.Count)
	return b.done()
}

// bcastTree sends n elements at buf from member 0 to all members.
func (b *builder) bcastTree(g group, buf Loc, n int) {
	t := binomialTree(g.me, g.size)
	if t.parent >= 0 {
		b.get(g.rank(t.parent), buf, n)
		b.next()
	}
	for _, c := range t.children {
		b.put(g.rank(c.member), buf, n)
	}
	b.next()
}

// bcastLinear: the root sends to everybody at once; for a few ranks.
func bcastLinear(p *Problem) *Plan {
	b := newBuilder(p, "linear")
	g := everyone(p).from(p.Root)
	if g.me != 0 {
		b.get(p.Root, Loc{Recv, 0}, p.Count)
		return b.done()
	}
	for m := 1; m < g.size; m++ {
		b.put(g.rank(m), Loc{Recv, 0}, p.Count)
	}
	return b.done()
}

// bcastChain returns the planner of the pipelined chain: the message goes
// from rank to rank in segments, and every rank passes one on while it receives the next.
// (P-2+m) steps of 1/m of the message for m segments.
//
// Barnett, Littlefield, Payne, van de Geijn, "Global combine on mesh architectures with wormhole routing", 1993.
func bcastChain(segmentBytes int) func(*Problem) *Plan {
	return func(p *Problem) *Plan {
		b := newBuilder(p, chainName(segmentBytes))
		b.bcastPipe(everyone(p).from(p.Root), Loc{Recv, 0}, p.Count, p.segment(segmentBytes))
		return b.done()
	}
}

func chainName(segmentBytes int) string {
	if segmentBytes >= 1<<20 {
		return fmt.Sprintf("chain/%dM", segmentBytes>>20)
	}
	return fmt.Sprintf("chain/%dK", segmentBytes>>10)
}

// segment is a number of elements of about the given size.
func (p *Problem) segment(bytes int) int { return max(1, bytes/max(1, p.ElemBytes)) }

func (b *builder) bcastPipe(g group, buf Loc, n, segment int) {
	if g.size == 1 {
		return
	}
	for lo := 0; lo < n+segment; lo += segment {
		// Segment at lo comes in while the one before it goes out.
		if g.me > 0 && lo < n {
			b.get(g.rank(g.me-1), buf.at(lo), min(segment, n-lo))
		}
		if g.me < g.size-1 && lo > 0 {
			b.put(g.rank(g.me+1), buf.at(lo-segment), min(segment, n-lo+segment))
		}
		b.next()
	}
}

// bcastScatterRing: the root scatters the message along a binomial tree, and
// the shares travel once around a ring: log₂P + P - 1 steps, 2(P-1)/P of the message.
//
// Van de Geijn's algorithm; Thakur, Rabenseifner, Gropp 2005, section 4.3.
func bcastScatterRing(p *Problem) *Plan {
	b := newBuilder(p, "scatter+ring")
	g := everyone(p).from(p.Root)
	l := evenly(p.Count, g.size)
	b.scatterTree(g, l, Loc{Recv, 0}, Loc{Recv, 0})
	b.allgatherRing(g, l, Loc{Recv, l.off(g.me)}, Loc{Recv, 0})
	return b.done()
}

// bcastScatterBruck: as bcastScatterRing, with the shares collected in
// ⌈log₂P⌉ steps by Bruck's pattern: 2⌈log₂P⌉ steps for any P.
func bcastScatterBruck(p *Problem) *Plan {
	b := newBuilder(p, "scatter+bruck")
	g := everyone(p).from(p.Root)
	b.bcastScatter(g, Loc{Recv, 0}, p.Count)
	return b.done()
}

func (b *builder) bcastScatter(g group, buf Loc, n int) {
	l := evenly(n, g.size)
	b.scatterTree(g, l, buf, buf)
	b.allgatherCyclic(g, l, buf.at(l.off(g.me)), buf)
}

// bcastNode: among the leaders of the nodes first, then inside each node.
func bcastNode(p *Problem) *Plan {
	b := newBuilder(p, "node+binomial")
	local, leaders, isLeader := p.hierarchy(p.Root)
	if isLeader {
		b.bcastTree(leaders, Loc{Recv, 0}, p.Count)
	}
	b.bcastTree(local, Loc{Recv, 0}, p.Count)
	return b.done()
}

// bcastNodeScatter: as bcastNode for long messages: scatter and allgather on both levels.
func bcastNodeScatter(p *Problem) *Plan {
	b := newBuilder(p, "node+scatter")
	local, leaders, isLeader := p.hierarchy(p.Root)
	if isLeader {
		b.bcastScatter(leaders, Loc{Recv, 0}, p.Count)
	}
	b.bcastScatter(local, Loc{Recv, 0}, p.Count)
	return b.done()
}
