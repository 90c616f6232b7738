package collective

import "github.com/fisterra-hpc/fisterra/collective/plan"

// What each rank gives and gets in a collective that is done in an arena, by what was called alone. How it travels
// is in arena_slots.go, arena_pieces.go and arena_direct.go.

// sources are the ranks that contribute to a rank's result, from first to before end.
func (e *entry) sources(rank int) (first, end int) {
	switch e.kind {
	case plan.Bcast:
		if rank == e.root {
			return 0, 0
		}
		return e.root, e.root + 1
	case plan.Scatter:
		return e.root, e.root + 1
	case plan.Reduce, plan.Gather:
		if rank != e.root {
			return 0, 0
		}
	case plan.ReduceScatter:
		if e.blockOffset(rank) == e.blockOffset(rank+1) {
			return 0, 0
		}
	case plan.Scan:
		return 0, rank + 1
	case plan.Exscan:
		return 0, rank
	}
	return 0, e.size
}

// gives reports whether rank `from` has something for rank `to`, which has nothing for it.
func (e *entry) gives(from, to int) bool {
	return ranksFrom(e.sources(to)).has(from) && !ranksFrom(e.sources(from)).has(to)
}

// readers are the ranks of whose results this one's contribution is a part.
func (e *entry) readers() rankSet {
	switch e.kind {
	case plan.Bcast, plan.Scatter:
		if e.rank != e.root {
			return 0
		}
	case plan.Gather, plan.Reduce:
		return oneRank(e.root)
	case plan.Scan, plan.Exscan:
		return ranksFrom(e.rank, e.size)
	}
	return ranksFrom(0, e.size)
}

// contribution is what the others may want from this rank.
func (m *meeting) contribution() []byte {
	switch e := m.entry; e.kind {
	case plan.Bcast:
		if e.rank == e.root {
			return m.recv
		}
		return nil
	case plan.Gather, plan.Allgather:
		if e.inPlace {
			return m.recv[e.blockOffset(e.rank):e.blockOffset(e.rank+1)]
		}
	}
	return m.send
}

// blockOffset is where a rank's block begins, in bytes, among all of them.
func (e *entry) blockOffset(rank int) int {
	if e.starts != nil {
		return e.starts[rank]
	}
	return rank * e.count * e.typ.size
}

// blockOffsets is blockOffset for blocks of different lengths, the end of the last included.
func blockOffsets(counts []int, elemBytes int) []int {
	if counts == nil {
		return nil
	}
	starts := make([]int, len(counts)+1)
	for r, n := range counts {
		starts[r+1] = starts[r] + n*elemBytes
	}
	return starts
}

// spoilsInput reports whether this rank's result may overwrite its input before that is combined: the inputs of two other
// ranks are combined first, or the result begins elsewhere than this rank's block.
func (e *entry) spoilsInput() bool {
	return e.inPlace && e.kind.Reduces() && (e.rank > 1 || e.rank == 1 && e.kind == plan.ReduceScatter)
}

// flow is what this rank does in a collective: for whom it waits, in all ways of the arena, and what it shows and takes
// through slots. It is found once for an entry: finding it takes longer than moving a few bytes.
type flow struct {
	needs      rankSet // whom it waits for
	leftOut    span    // not shown, since no other rank wants it: its own block of what it deals, unless it rereads that
	rereads    bool    // it reads its own contribution where it has shown it, as the others do
	result     result  // what it makes of what is shown
	ranks      int     // if combined: the contributions of so many, from rank 0 on
	shownBytes int     // that each rank shows; not for wholeBlocks
	takes      span    // the part of these that this rank takes
}

// span is a range of bytes.
type span struct{ from, to int }

// result is what a rank makes of what the ranks show it.
type result uint8

const (
	nothing     result = iota
	copied             // the root's
	combined           // all of them in one
	wholeBlocks        // all of what each shows, one after the other
	cutBlocks          // the same part of each
)

// findFlow finds the flow of an entry.
func (e *entry) findFlow() {
	first, end := e.sources(e.rank)
	n := e.count * e.typ.size
	f := flow{needs: ranksFrom(first, end), rereads: e.spoilsInput(), ranks: end, shownBytes: n, takes: span{0, n}}
	if e.waitsForAll {
		f.needs = ranksFrom(0, e.size)
	}
	switch e.kind {
	case plan.Scatter, plan.Alltoall, plan.ReduceScatter:
		f.shownBytes, f.takes = e.blockOffset(e.size), span{e.blockOffset(e.rank), e.blockOffset(e.rank + 1)}
		if !f.rereads && (e.kind != plan.Scatter || e.rank == e.root) {
			f.leftOut = f.takes
		}
	}
	switch {
	case first == end || e.kind == plan.Barrier || e.kind == plan.Scatter && e.rank == e.root && e.inPlace:
	case e.kind == plan.Bcast || e.kind == plan.Scatter:
		f.result = copied
	case e.kind.Reduces():
		f.result = combined
	case e.kind == plan.Alltoall:
		f.result = cutBlocks
	default:
		f.result = wholeBlocks
	}
	e.flow = f
}

// fold combines what the first n ranks show, in their order. n is not 0.
func (e *entry) fold(dst []byte, n int, shown func(rank int) []byte) {
	if n == 1 {
		copy(dst, shown(0))
		return
	}
	e.combine(dst, shown(0), shown(1))
	for r := 2; r < n; r++ {
		e.combine(dst, dst, shown(r))
	}
}
