package plan

// Butterflies of mixed radix: members count in a number system whose digits have
// the prime factors of the group's size as radices, and those that differ in one digit only
// exchange their parts. Halving and doubling are the case in which all factors are 2. Runs of
// blocks never wrap, as they do in a ring, so each partner gets one message.
//
// Ruefenacht, Bull, Booth, "Generalisation of recursive doubling for AllReduce: now with simulation", 2017.

// widest is the largest factor for which a step of factor-1 messages is no
// dearer than the circulant pattern's rounds.
const widest = 7

// factors are the prime factors of n, ascending; nil if one is larger than widest.
func factors(n int) []int {
	var fs []int
	for f := 2; n > 1; f++ {
		if f > widest {
			return nil
		}
		for ; n%f == 0; n /= f {
			fs = append(fs, f)
		}
	}
	return fs
}

// reduceScatterAny and allgatherAny are the butterflies, or for sizes without
// factors the circulant pattern, in stepsAny steps.

func (b *builder) reduceScatterAny(g group, l layout, in, acc, out Loc) {
	if factors(g.size) == nil {
		b.reduceScatterCirculant(g, l, halvingSkips(g.size), in, acc, out)
		return
	}
	b.reduceScatterButterfly(g, l, in, acc, out)
}

func (b *builder) allgatherAny(g group, l layout, buf Loc) {
	if factors(g.size) == nil {
		b.allgatherCirculant(g, l, halvingSkips(g.size), buf)
		return
	}
	b.allgatherButterfly(g, l, buf)
}

func stepsAny(size int) int {
	if fs := factors(size); fs != nil {
		return len(fs)
	}
	return rounds2(size)
}

// reduceScatterButterfly reduces block i of l at member i: operands in `in`,
// partial results in acc, which may be the same memory; the last goes to out.
// The group's size has factors, and the operator must commute.
func (b *builder) reduceScatterButterfly(g group, l layout, in, acc, out Loc) {
	if g.size == 1 {
		b.copy(out, in, l.total())
		return
	}
	at := in
	lo, span := 0, g.size // the blocks that this member has a part of
	for _, f := range factors(g.size) {
		part := span / f
		digit := (g.me - lo) / part
		mine := lo + digit*part
		dst := acc.at(l.off(mine))
		if part == 1 {
			dst = out
		}
		n := l.off(mine+part) - l.off(mine)
		from := at.at(l.off(mine))
		for k := 1; k < f; k++ {
			to := mod(digit+k, f)
			theirs := lo + to*part
			b.putParts(g.rank(g.me+(to-digit)*part), at.at(l.off(theirs)), l.off(theirs+part)-l.off(theirs))
		}
		for k := 1; k < f; k++ {
			source, fold := mod(digit-k, f), b.fold
			if source < digit {
				fold = b.foldLeft
			}
			fold(g.rank(g.me+(source-digit)*part), dst, from, n)
			from = dst
		}
		b.next()
		lo, span, at = mine, part, acc
	}
}

// allgatherButterfly is reduceScatterButterfly backwards: on entry each member
// has its block of l at its place in buf, and the last step is the longest.
func (b *builder) allgatherButterfly(g group, l layout, buf Loc) {
	fs := factors(g.size)
	part := 1
	for i := len(fs) - 1; i >= 0; i-- {
		f := fs[i]
		span := part * f
		lo, mine := g.me/span*span, g.me/part*part
		digit := (mine - lo) / part
		for k := 1; k < f; k++ {
			to := mod(digit+k, f)
			b.put(g.rank(g.me+(to-digit)*part), buf.at(l.off(mine)), l.off(mine+part)-l.off(mine))
		}
		for k := 1; k < f; k++ {
			source := mod(digit-k, f)
			theirs := lo + source*part
			b.get(g.rank(g.me+(source-digit)*part), buf.at(l.off(theirs)), l.off(theirs+part)-l.off(theirs))
		}
		b.next()
		part = span
	}
}
