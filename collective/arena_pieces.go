package collective

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
)

// A pieceRun is a collective on vectors that no slot holds, in steps. A rank's area is a ring of
// pieces, and a step uses one piece of each rank: those that have something show it there,
// and those that need it take or combine it straight out of the others' pieces. A piece is
// written again when its readers have taken what was in it, so that a rank shows several
// before it has to wait for anybody: the root of a bcast runs ahead, and ranks that share a
// core do many steps in one turn.
//
// In a step that spreads, a rank shows the next bytes of its own block to all who read it.
// In one that deals it shows the next bytes of every rank's block, in as many boxes. An
// allreduce deals slices, which each rank combines, and spreads the results.
//
// Cost: what a rank gives is copied once, and what it gets is copied or combined once; for
// an allreduce of n bytes (P-1)/P·n shown, as much combined, n/P shown and (P-1)/P·n taken.
type pieceRun struct {
	*meeting
	first   uint64 // steps of the arena before it
	steps   int
	rounds  int     // steps in which the longest block is shown once
	box     int     // bytes of a block in one step
	readers rankSet // ranks that take what this rank shows
	shows   bool    // this rank shows something
	keeps   bool    // it shows its input also to itself, since the result overwrites that before its turn to be combined
}

// step is one step of a pieceRun.
type step struct {
	number uint64 // among all of the arena, from 1
	round  int    // which bytes of the blocks
	deals  bool
}

// usage is what a piece holds: which step's bytes, and who reads them.
type usage struct {
	number  uint64
	readers rankSet
}

func (m *meeting) throughPieces(ctx context.Context) error {
	m.noteBuffers()
	m.show(nil)
	l := m.layOut()
	if m.entry.waitsForAll {
		if err := m.compareCalls(ctx); err != nil {
			return err
		}
	}
	given, ahead := 0, m.ahead
	if first, end := m.entry.sources(m.me); end-first == 1 && first == m.me && memcopy.Fits(len(m.send), len(m.parts)) {
		ahead = l.steps // first what the others wait for: this rank's own part is in its caches afterwards, too
	}
	for taken := range l.steps {
		for given < l.steps && (given == taken || given <= taken+ahead && l.ready(given, taken)) {
			if err := l.give(ctx, l.step(given)); err != nil {
				return err
			}
			given++
		}
		if taken == 0 && !m.entry.waitsForAll {
			if err := m.compareCalls(ctx); err != nil {
				return err
			}
		}
		if err := l.take(ctx, l.step(taken)); err != nil {
			return err
		}
	}
	l.pace.judge()
	return nil
}

// layOut finds the steps. They are the same on all ranks.
func (m *meeting) layOut() pieceRun {
	e, size := m.entry, len(m.parts)
	l := pieceRun{meeting: m, first: m.steps, box: pieceBytes, readers: m.entry.readers()}
	l.keeps = e.inPlace && e.kind.Reduces() && m.me > 1
	l.shows = l.readers&^oneRank(m.me) != 0 || l.keeps
	if deals(e.kind) {
		l.box = boxBytes(size)
	}
	longest := 0
	for r := range size {
		from, to := m.block(r)
		longest = max(longest, to-from)
	}
	l.rounds = (longest + l.box - 1) / l.box
	l.steps = l.rounds
	if e.kind == plan.Allreduce {
		l.steps *= 2
	}
	m.steps += uint64(l.steps)
	return l
}

// deals reports whether the steps of a collective deal. Of an allreduce the first ones do.
func deals(k plan.Kind) bool {
	switch k {
	case plan.Scatter, plan.Alltoall, plan.ReduceScatter, plan.Allreduce:
		return true
	}
	return false
}

// boxBytes is how much a rank deals to each of so many in one step. With two ranks, the other one has all the piece.
func boxBytes(ranks int) int {
	if ranks == 2 {
		return pieceBytes
	}
	return pieceBytes / ranks / lineBytes * lineBytes
}

// boxAt is where in a piece the box of a rank begins.
func (l *pieceRun) boxAt(r int) int {
	if len(l.parts) == 2 {
		return 0
	}
	return r * l.box
}

// block is where a rank's block begins and ends among all of them, in bytes. Vectors that
// are not cut are the same block for all ranks.
func (m *meeting) block(r int) (from, to int) {
	e := m.entry
	switch e.kind {
	case plan.Bcast, plan.Reduce, plan.Scan, plan.Exscan:
		return 0, e.count * e.typ.size
	case plan.Allreduce:
		return e.count * r / len(m.parts) * e.typ.size, e.count * (r + 1) / len(m.parts) * e.typ.size
	}
	return m.entry.blockOffset(r), m.entry.blockOffset(r + 1)
}

// lead is how many rounds an allreduce deals before it spreads their results. They are no more than 16, since the 32 pieces of
// the ring hold what is dealt and what is spread.
const lead = pieces / 2

// step is which rounds' bytes step i is about. An allreduce of 20 rounds has 40 steps: 0 to 15 deal rounds 0 to 15 and 16 to 31
// spread them; 32 to 35 deal rounds 16 to 19 and 36 to 39 spread those.
func (l *pieceRun) step(i int) step {
	s := step{number: l.first + uint64(i) + 1, round: i, deals: deals(l.entry.kind)}
	if l.entry.kind == plan.Allreduce {
		base := i / (2 * lead) * lead
		at, n := i-2*base, min(lead, l.rounds-base)
		s.round, s.deals = base+at%n, at < n
	}
	return s
}

// ready reports whether this rank can give its part of step i when it has taken so many steps, fewer than i: there is room
// for the part, and if it spreads a result of an allreduce, that has been combined.
func (l *pieceRun) ready(i, taken int) bool {
	s := l.step(i)
	if l.entry.kind == plan.Allreduce && !s.deals {
		first := i / (2 * lead) * 2 * lead
		if first+s.round%lead >= taken {
			return false
		}
	}
	if !l.shows {
		return true
	}
	u := &l.ring[s.number%pieces]
	for r, part := range l.parts {
		if u.readers.has(r) && r != l.me && atomic.LoadUint64(&part[flagTaken]) < u.number {
			return false
		}
	}
	return true
}

// give shows what this rank has to show in a step, when there is room.
func (l *pieceRun) give(ctx context.Context, s step) error {
	if !l.shows {
		return nil
	}
	u := &l.ring[s.number%pieces]
	for _, r := range l.others {
		if u.readers.has(r) {
			if err := l.reach(ctx, r, flagTaken, u.number, u.readers); err != nil {
				return err
			}
		}
	}
	*u = usage{s.number, l.readers}
	begun, n := time.Now(), 0
	if s.deals {
		for r := range l.parts {
			if from, to := l.cut(r, s); r != l.me || l.keeps {
				n += copy(l.pieceOf(l.me, s, l.boxAt(r), to-from), l.send[from:to])
			}
		}
	} else {
		v := l.input(s)
		n = copy(l.pieceOf(l.me, s, 0, len(v)), v)
	}
	l.pace.note(time.Since(begun), n)
	l.raise(flagShown, s.number)
	return nil
}

// cut is which bytes of a rank's block a step is about.
func (l *pieceRun) cut(r int, s step) (from, to int) {
	from, to = l.block(r)
	return min(from+s.round*l.box, to), min(from+(s.round+1)*l.box, to)
}

// input is what this rank itself contributes to a step.
func (l *pieceRun) input(s step) []byte {
	from, to := l.cut(l.me, s)
	switch {
	case s.deals:
		return l.send[from:to]
	case l.entry.kind == plan.Allreduce:
		return l.recv[from:to]
	}
	start, _ := l.block(l.me)
	return l.contribution()[from-start : to-start]
}

// shownBy is what a rank shows this one in a step.
func (l *pieceRun) shownBy(r int, s step) []byte {
	at, block := 0, r
	if s.deals {
		at, block = l.boxAt(l.me), l.me
	}
	from, to := l.cut(block, s)
	return l.pieceOf(r, s, at, to-from)
}

// output is where what a rank shows goes, or what is combined of all.
func (l *pieceRun) output(r int, s step) []byte {
	switch l.entry.kind {
	case plan.Scatter, plan.ReduceScatter:
		start, _ := l.block(l.me)
		from, to := l.cut(l.me, s)
		return l.recv[from-start : to-start]
	}
	from, to := l.cut(r, s)
	return l.recv[from:to]
}

// take makes this rank's part of the result of a step.
func (l *pieceRun) take(ctx context.Context, s step) error {
	var err error
	if e := l.entry; e.kind.Reduces() && (s.deals || e.kind != plan.Allreduce) {
		err = l.combine(ctx, s)
	} else {
		err = l.collectPieces(ctx, s)
	}
	if err == nil {
		l.raise(flagTaken, s.number)
	}
	return err
}

// combine takes what the sources show, and this rank's own input, in their order.
func (l *pieceRun) combine(ctx context.Context, s step) error {
	first, end := l.entry.sources(l.me)
	if first == end {
		return nil
	}
	for r := first; r < end; r++ {
		if err := l.await(ctx, r, s); err != nil {
			return err
		}
	}
	out := l.output(l.me, s)
	var own []byte
	if !l.keeps && l.me < end {
		if own = l.input(s); apart(out, own) {
			l.saved = append(l.saved[:0], own...)
			own = l.saved
		}
	}
	l.entry.fold(out, end, func(r int) []byte {
		if r == l.me && !l.keeps {
			return own
		}
		return l.shownBy(r, s)
	})
	return nil
}

// apart: two operands of the same length overlap without being the same, which no operator has to bear.
func apart(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 && &a[0] != &b[0] && memcopy.Overlap(a, b)
}

// await waits until a rank shows its part of a step.
func (l *pieceRun) await(ctx context.Context, r int, s step) error {
	if r == l.me {
		return nil
	}
	return l.reach(ctx, r, flagShown, s.number, ranksFrom(l.entry.sources(l.me)))
}

// collectPieces puts what the sources show in its place, the next rank's first, so that not all ranks read the same one's
// at once.
func (l *pieceRun) collectPieces(ctx context.Context, s step) error {
	first, end := l.entry.sources(l.me)
	for i := 1; i <= len(l.parts); i++ {
		r := (l.me + i) % len(l.parts)
		if r < first || r >= end {
			continue
		}
		if r == l.me {
			if !l.entry.inPlace && l.entry.kind != plan.Allreduce {
				l.put(l.output(r, s), l.input(s))
			}
			continue
		}
		out := l.output(r, s)
		if len(out) == 0 {
			continue
		}
		if err := l.await(ctx, r, s); err != nil {
			return err
		}
		l.put(out, l.shownBy(r, s))
	}
	return nil
}
