package plan

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// region is memory that a message of a round, or a local step beside it, reads or writes.
type region struct {
	step   int
	buf    Buf
	lo, hi int
	write  bool
}

// disjoint checks the memory that the steps of a round touch: each step stays within its buffer, none writes what must not
// be written, and none writes memory that another step uses at the same time, if one of the two is a message. Folds may
// share memory, since they are done in order. But where received data land in the place of a fold's result (see lands),
// they do so long before the folds ahead of it are done, which therefore must not use that place.
func (s *symbolic) disjoint(steps []Step) error {
	var regions []region
	messages := false
	for i, st := range steps {
		messages = messages || !st.Action.Local()
		var reads, writes []Loc
		switch st.Action {
		case Copy:
			reads, writes = []Loc{st.A}, []Loc{st.Dst}
		case Combine:
			reads, writes = []Loc{st.A, st.B}, []Loc{st.Dst}
		case Put, PutParts:
			reads = []Loc{st.A}
		case Get:
			writes = []Loc{st.Dst}
		case Fold:
			reads, writes = []Loc{st.A}, []Loc{st.Dst}
		}
		for _, l := range append(reads, writes...) {
			if l.Off < 0 || st.N < 0 || l.Off+st.N > len(s.mem[l.Buf]) {
				return fmt.Errorf("%q: %v has %d elements", st, l.Buf, len(s.mem[l.Buf]))
			}
		}
		if st.N == 0 {
			continue
		}
		for _, l := range writes {
			if l.Buf == Send && !s.aliased() {
				return fmt.Errorf("%q writes the user's input", st)
			}
			for _, r := range reads {
				if x, y := s.region(i, l, st.N, true), s.region(i, r, st.N, false); x.meets(y) && (x.lo != y.lo || st.Action == Copy) {
					return fmt.Errorf("%q overlaps itself", st)
				}
			}
		}
		if !messages {
			continue
		}
		for _, l := range reads {
			regions = append(regions, s.region(i, l, st.N, false))
		}
		for _, l := range writes {
			regions = append(regions, s.region(i, l, st.N, true))
		}
	}
	for i, x := range regions {
		for _, y := range regions[:i] {
			if x.step == y.step || !x.write && !y.write || !x.meets(y) || steps[x.step].Action.Local() && steps[y.step].Action.Local() {
				continue
			}
			folds := steps[x.step].Action == Fold && steps[y.step].Action == Fold
			if !folds || x.write && s.lands(steps[x.step]) {
				return fmt.Errorf("%q and %q use the same memory at once", steps[y.step], steps[x.step])
			}
		}
	}
	return nil
}

// lands reports whether the data that a fold receives may land where its result goes: that is not also its operand.
func (s *symbolic) lands(fold Step) bool {
	return !s.region(0, fold.A, fold.N, false).meets(s.region(0, fold.Dst, fold.N, true))
}

// aliased: Send and Recv are the same memory.
func (s *symbolic) aliased() bool {
	return s.InPlace && s.Kind != Gather && s.Kind != Allgather && s.Kind != Scatter
}

func (s *symbolic) region(step int, l Loc, n int, write bool) region {
	if l.Buf == Send && s.aliased() {
		l.Buf = Recv
	}
	return region{step, l.Buf, l.Off, l.Off + n, write}
}

func (r region) meets(o region) bool { return r.buf == o.buf && r.lo < o.hi && o.lo < r.hi }

// sets interns sets of ranks, so that symbols stay small.
type sets struct {
	words  [][]uint64
	find   map[string]int32
	unions map[[2]int32]int32
	key    []byte // of the set that is looked up
}

func newSets() *sets {
	return &sets{find: make(map[string]int32), unions: make(map[[2]int32]int32)}
}

func (t *sets) intern(w []uint64) int32 {
	for len(w) > 0 && w[len(w)-1] == 0 {
		w = w[:len(w)-1]
	}
	t.key = t.key[:0]
	for _, x := range w {
		t.key = binary.LittleEndian.AppendUint64(t.key, x)
	}
	id, ok := t.find[string(t.key)]
	if !ok {
		id = int32(len(t.words))
		t.words = append(t.words, w)
		t.find[string(t.key)] = id
	}
	return id
}

func (t *sets) only(rank int) int32 {
	w := make([]uint64, rank/64+1)
	w[rank/64] = 1 << (rank % 64)
	return t.intern(w)
}

// all is the set of the first n ranks.
func (t *sets) all(n int) int32 {
	w := make([]uint64, n/64+1)
	for i := range n {
		w[i/64] |= 1 << (i % 64)
	}
	return t.intern(w)
}

func (t *sets) union(a, b int32) int32 {
	key := [2]int32{min(a, b), max(a, b)}
	id, ok := t.unions[key]
	if !ok {
		x, y := t.words[a], t.words[b]
		if len(x) < len(y) {
			x, y = y, x
		}
		w := append([]uint64(nil), x...)
		for i := range y {
			w[i] |= y[i]
		}
		id = t.intern(w)
		t.unions[key] = id
	}
	return id
}

func (t *sets) overlap(a, b int32) bool {
	x, y := t.words[a], t.words[b]
	for i := range min(len(x), len(y)) {
		if x[i]&y[i] != 0 {
			return true
		}
	}
	return false
}

// adjacent: both are runs of consecutive ranks and b begins where a ends.
func (t *sets) adjacent(a, b int32) bool {
	alo, ahi, aok := t.extent(a)
	blo, bhi, bok := t.extent(b)
	return aok && bok && ahi == blo && alo < ahi && blo < bhi
}

func (t *sets) extent(a int32) (lo, hi int, whole bool) {
	count := 0
	lo = -1
	for i, w := range t.words[a] {
		if w == 0 {
			continue
		}
		if lo < 0 {
			lo = i*64 + bits.TrailingZeros64(w)
		}
		hi = i*64 + bits.Len64(w)
		count += bits.OnesCount64(w)
	}
	return lo, hi, count == hi-lo
}

func (t *sets) list(a int32) []int {
	var ranks []int
	if a == unset {
		return nil
	}
	for i, w := range t.words[a] {
		for ; w != 0; w &= w - 1 {
			ranks = append(ranks, i*64+bits.TrailingZeros64(w))
		}
	}
	return ranks
}
