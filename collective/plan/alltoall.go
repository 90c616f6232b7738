package plan

// exchange is the shape of one rank's alltoall(v).
type exchange struct{ send, recv layout }

func (p *Problem) exchange() exchange {
	if p.SendCounts == nil {
		l := layout{size: p.Size, count: p.Count}
		return exchange{l, l}
	}
	return exchange{laidOut(p.SendCounts), laidOut(p.RecvCounts)}
}

// source is where the outgoing blocks are: in place they are moved away first.
func (p *Problem) source(b *builder, x exchange) Loc {
	if !p.InPlace {
		return Loc{Send, 0}
	}
	w := b.work(x.send.total())
	b.copy(w, Loc{Send, 0}, x.send.total())
	return w
}

// alltoallPairwise: in step t every rank sends to the one t further on and
// receives from the one t before; P-1 steps.
//
// Thakur, Rabenseifner, Gropp 2005, section 4.2.
func alltoallPairwise(p *Problem) *Plan {
	b := newBuilder(p, "pairwise")
	b.alltoallWindow(p, 1)
	return b.done()
}

// alltoallLinear: as pairwise, with up to 32 steps under way at once.
func alltoallLinear(p *Problem) *Plan {
	b := newBuilder(p, "linear")
	b.alltoallWindow(p, laneWindow)
	return b.done()
}

func (b *builder) alltoallWindow(p *Problem, window int) {
	x := p.exchange()
	src := p.source(b, x)
	me := p.Rank
	b.beside(Loc{Recv, x.recv.off(me)}, src.at(x.send.off(me)), x.send.n(me))
	for t := 1; t < p.Size; t++ {
		to, from := (me+t)%p.Size, mod(me-t, p.Size)
		b.put(to, src.at(x.send.off(to)), x.send.n(to))
		b.get(from, Loc{Recv, x.recv.off(from)}, x.recv.n(from))
		if t%window == 0 {
			b.next()
		}
	}
}

// alltoallBruck: ⌈log₂P⌉ steps, each with about half of all blocks; for short blocks.
//
// Bruck, Ho, Kipnis, Upfal, Weathersby 1997, section 3.
func alltoallBruck(p *Problem) *Plan {
	b := newBuilder(p, "bruck")
	n, me, size := p.Count, p.Rank, p.Size
	w := b.work(size * n)
	// Block i of scratch is for the rank i further on.
	b.copy(w, Loc{Send, me * n}, (size-me)*n)
	b.copy(w.at((size-me)*n), Loc{Send, 0}, me*n)
	out, in := b.work(size/2*n+n), b.work(size/2*n+n)
	for d := 1; d < size; d *= 2 {
		k := 0
		for i := d; i < size; i += 2 * d {
			m := min(d, size-i)
			b.copy(out.at(k*n), w.at(i*n), m*n)
			k += m
		}
		b.put((me+d)%size, out, k*n)
		b.get(mod(me-d, size), in, k*n)
		b.next()
		k = 0
		for i := d; i < size; i += 2 * d {
			m := min(d, size-i)
			b.copy(w.at(i*n), in.at(k*n), m*n)
			k += m
		}
	}
	for i := range size {
		b.copy(Loc{Recv, mod(me-i, size) * n}, w.at(i*n), n)
	}
	return b.done()
}
