package plan

// scanDoubling: in step k every rank sends what it has accumulated to the
// one 2ᵏ further on; ⌈log₂P⌉ steps of the whole vector.
//
// Hillis, Steele, "Data parallel algorithms", 1986.
func scanDoubling(p *Problem) *Plan {
	b := newBuilder(p, "doubling")
	n := p.Count
	acc := Loc{Recv, 0}
	b.copy(acc, Loc{Send, 0}, n)
	var w Loc
	if p.Rank > 0 {
		w = b.work(n)
	}
	for d := 1; d < p.Size; d *= 2 {
		b.shift(d, acc, w, n)
		if p.Rank >= d {
			b.combine(acc, w, acc, n)
		}
	}
	return b.done()
}

// shift sends acc to the rank d further on and receives w from the one d before.
func (b *builder) shift(d int, acc, w Loc, n int) {
	if b.Rank+d < b.Size {
		b.put(b.Rank+d, acc, n)
	}
	if b.Rank >= d {
		b.get(b.Rank-d, w, n)
	}
	b.next()
}

// exscanDoubling keeps two values: with and without this rank's operand.
//
// Hillis, Steele 1986.
func exscanDoubling(p *Problem) *Plan {
	b := newBuilder(p, "doubling")
	n := p.Count
	acc, w := Loc{Send, 0}, Loc{}
	if p.Rank > 0 {
		acc, w = b.work(n), b.work(n)
		b.copy(acc, Loc{Send, 0}, n)
	}
	for d := 1; d < p.Size; d *= 2 {
		b.shift(d, acc, w, n)
		if p.Rank < d {
			continue
		}
		if d == 1 {
			b.copy(Loc{Recv, 0}, w, n)
		} else {
			b.combine(Loc{Recv, 0}, w, Loc{Recv, 0}, n)
		}
		if 2*d < p.Size {
			b.combine(acc, w, acc, n)
		}
	}
	return b.done()
}

// scanChain returns the planner of the pipelined chain: prefixes travel from rank to rank in
// segments; P-2+m steps of 1/m of the vector.
func scanChain(segmentBytes int) func(*Problem) *Plan {
	return func(p *Problem) *Plan {
		b := newBuilder(p, chainName(segmentBytes))
		n, segment := p.Count, p.segment(segmentBytes)
		src := Loc{Recv, 0}
		if p.Rank == 0 {
			b.copy(Loc{Recv, 0}, Loc{Send, 0}, n)
			src = Loc{Send, 0}
		}
		for lo := 0; lo < n+segment; lo += segment {
			if p.Rank > 0 && lo < n {
				b.fold(p.Rank-1, Loc{Recv, lo}, Loc{Send, lo}, min(segment, n-lo), true)
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
