package collective

import (
	"context"
	"encoding/binary"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// throughSlots: every rank shows in its slot what it contributes, and takes what it
// needs from the slots of the others. A slot has the turn, the call's
// signature and number and a vector of up to inlineBytes, the first of them in the same cache line; of a
// longer one it says where it is.
// Ranks that need nothing do not wait: a slot is written again only after all others
// have gone on from the turn that it was written for.
//
// Cost: one crossing of a cache line, and as many bytes read as are received.
func (m *meeting) throughSlots(ctx context.Context) error {
	m.noteBuffers()
	from, to := m.unwanted()
	m.showBut(from, to, m.contribution())
	if err := m.compareCalls(ctx); err != nil {
		return err
	}
	m.take()
	return nil
}

// order is in which order ranks leave a barrier, as one of them sees it. Whom others waited for in the call before the barrier
// leaves before them: if the program calls the same again, it is there first. In a crowd that holds among the ranks of a processor, too: one
// that leaves too early would take the processor, and have to give it back within the next call.
type order struct {
	first    int     // the rank that leaves before all others, or nobody
	before   rankSet // those of this rank's processor that leave before it
	followed bool    // others of its processor leave after this rank
	matters  bool    // any of that
}

// expected is the order in which ranks leave a barrier after this call.
func (m *meeting) expected() *order {
	o := &order{first: nobody}
	switch m.entry.kind {
	case plan.Bcast, plan.Scatter:
		o.first = m.entry.root
	case plan.Scan, plan.Exscan:
		o.first = 0
	}
	for _, r := range m.mates {
		if m.gives(r, m.me) {
			o.before |= oneRank(r)
		}
		o.followed = o.followed || m.gives(m.me, r)
	}
	if o.followed { // a chain would give the processor to the wrong one too often
		o.before = 0
	}
	o.matters = o.first != nobody || o.before != 0 || o.followed
	return o
}

// gives reports whether in this call a rank has something for another that has nothing for it.
func (m *meeting) gives(from, to int) bool {
	return ranksFrom(m.sources(to)).has(from) && !ranksFrom(m.sources(from)).has(to)
}

// leaveInOrder is a barrier that ranks leave in an order. Where one is first it costs a crossing more than if all left as soon as they see all.
// The ranks agree on the order: each has compared the call before with the first one's.
func (m *meeting) leaveInOrder(ctx context.Context, o *order) error {
	m.show(nil)
	if err := m.awaitFirst(ctx, o.first); err != nil {
		return err
	}
	for _, r := range m.mates {
		if o.before.has(r) {
			if err := m.reach(ctx, r, released, m.turn, o.before); err != nil {
				return err
			}
		}
	}
	if m.me == o.first || o.followed {
		m.raise(released, m.turn)
	}
	return nil
}

// awaitFirst waits until the first rank has left the barrier; that one, as all if there is none, until all have come.
func (m *meeting) awaitFirst(ctx context.Context, first int) error {
	if m.me == first || first == nobody {
		return m.compareCalls(ctx)
	}
	if m.near(first, released, m.turn) {
		return m.see(ctx, first, oneRank(first))
	}
	if err := m.compareCalls(ctx); err != nil { // so that whoever is late is known
		return err
	}
	return m.reach(ctx, first, released, m.turn, oneRank(first))
}

// sources are the ranks that contribute to a rank's result, from first to before end.
func (m *meeting) sources(rank int) (first, end int) {
	switch m.entry.kind {
	case plan.Bcast:
		if rank == m.entry.root {
			return 0, 0
		}
		return m.entry.root, m.entry.root + 1
	case plan.Scatter:
		return m.entry.root, m.entry.root + 1
	case plan.Reduce, plan.Gather:
		if rank != m.entry.root {
			return 0, 0
		}
	case plan.ReduceScatter:
		if m.blockOffset(rank) == m.blockOffset(rank+1) {
			return 0, 0
		}
	case plan.Scan:
		return 0, rank + 1
	case plan.Exscan:
		return 0, rank
	}
	return 0, len(m.parts)
}

// readers are the ranks of whose results this one's contribution is a part.
func (m *meeting) readers() rankSet {
	switch m.entry.kind {
	case plan.Bcast, plan.Scatter:
		if m.me != m.entry.root {
			return 0
		}
	case plan.Gather, plan.Reduce:
		return oneRank(m.entry.root)
	case plan.Scan, plan.Exscan:
		return ranksFrom(m.me, len(m.parts))
	}
	return m.everybody()
}

// contribution is what the others may want from this rank.
func (m *meeting) contribution() []byte {
	switch m.entry.kind {
	case plan.Bcast:
		if m.me == m.entry.root {
			return m.recv
		}
		return nil
	case plan.Gather, plan.Allgather:
		if m.entry.inPlace {
			return m.recv[m.blockOffset(m.me):m.blockOffset(m.me+1)]
		}
	}
	return m.send
}

// blockOffset is where a rank's block begins, in bytes, among all of them.
func (m *meeting) blockOffset(rank int) int {
	if m.entry.starts != nil {
		return m.entry.starts[rank]
	}
	return rank * m.entry.count * m.entry.typ.size
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

// unwanted is where in its contribution a rank has what no other wants, from a byte on to before another: its own block of
// what it deals, unless it has to look there itself.
func (m *meeting) unwanted() (from, to int) {
	switch m.entry.kind {
	case plan.Scatter, plan.Alltoall, plan.ReduceScatter:
		if len(m.send) > 0 && !m.spoilsInput() {
			return m.blockOffset(m.me), m.blockOffset(m.me + 1)
		}
	}
	return 0, 0
}

// show writes the slot of this turn, its first word last.
func (m *meeting) show(vector []byte) { m.showBut(0, 0, vector) }

// showBut is show, and leaves some bytes of the vector out.
func (m *meeting) showBut(from, to int, vector []byte) {
	a := m.arena
	at := slot(a.turn)
	words, head := a.parts[a.me][at:at+slotWords], &a.heads[a.turn%slots]
	head[1] = binary.NativeEndian.Uint64(m.signature[:])
	head[2] = binary.NativeEndian.Uint64(m.signature[8:])
	head[callAt] = uint64(m.seq)<<numberShift | a.pace.vote() | a.bufferVote[long] | a.bufferVote[short]<<shortVotes
	words[1], words[2], words[callAt] = head[1], head[2], head[callAt]
	n := len(vector)
	if n <= inlineBytes {
		shown := a.bytesAt(a.me, at+slotHead, n)
		copy(shown, vector[:from])
		copy(shown[to:], vector[to:])
	} else {
		a.stored = a.storedAt(n)
		words[slotHead] = uint64(a.stored)
		shown := a.bytesAt(a.me, storeAt+a.stored/8, n)
		memcopy.Owning(shown, vector[:from])
		memcopy.Owning(shown[to:], vector[to:])
		a.stored += (n+lineBytes-1)/lineBytes*lineBytes + memcopy.ReadAheadBytes
	}
	a.raise(at, a.turn)
	a.fetchAhead(n)
}

// storedAt is where in the store the next vector begins, if it has n bytes.
func (a *arena) storedAt(n int) int {
	if a.stored+n > a.store {
		return 0
	}
	return a.stored
}

// fetchAhead asks for the lines of the next slot, as raise does for the first, where that will have as long a vector as one of
// the last two, and for those of the store where one as long as this will be.
func (a *arena) fetchAhead(nBytes int) {
	lines := 1
	if nBytes <= inlineBytes {
		lines = (slotHead*8 + nBytes + lineBytes - 1) / lineBytes
	} else {
		memcopy.OwnAhead(a.bytesAt(a.me, storeAt+a.storedAt(nBytes)/8, nBytes))
	}
	if most := max(lines, a.lines); most > 1 {
		memcopy.OwnAhead(a.bytesAt(a.me, slot(a.turn+1)+line, (most-1)*lineBytes))
	}
	a.lines = lines
}

// shown is what a rank showed, from a byte on to before another. What this one did is in its own buffer, too, and its
// slot no longer in its caches.
func (m *meeting) shown(rank, from, to int) []byte {
	if rank == m.me && !m.spoilsInput() {
		return m.contribution()[from:to]
	}
	at := slot(m.turn) + slotHead
	n := m.contributes(rank)
	if n > inlineBytes {
		at = storeAt + int(m.parts[rank][at])/8
	}
	return m.bytesAt(rank, at, n)[from:to]
}

// spoilsInput reports whether this rank's result may overwrite its input before that is combined: the result of two other
// ranks' inputs, or one that begins elsewhere than this rank's block.
func (m *meeting) spoilsInput() bool {
	e := m.entry
	return e.inPlace && e.kind.Reduces() && (m.me > 1 || m.me == 1 && e.kind == plan.ReduceScatter)
}

// contributes is how many bytes a rank shows, if the others want any of it.
func (m *meeting) contributes(rank int) int {
	switch m.entry.kind {
	case plan.Gather, plan.Allgather:
		return m.blockOffset(rank+1) - m.blockOffset(rank)
	case plan.Scatter, plan.Alltoall, plan.ReduceScatter:
		return m.blockOffset(len(m.parts))
	}
	return m.entry.count * m.entry.typ.size
}

// compareCalls waits for the ranks whose contributions this one needs, or for all that are to compare.
func (m *meeting) compareCalls(ctx context.Context) error {
	needed := ranksFrom(m.sources(m.me))
	if m.entry.waitsForAll {
		needed = m.everybody()
	}
	for _, r := range m.others {
		if !needed.has(r) {
			continue
		}
		if err := m.see(ctx, r, needed); err != nil {
			return err
		}
	}
	return nil
}

// see waits until a rank, one of several, has shown its vector, and compares the calls. It compares their numbers, too:
// a call that was refused on one of the ranks has had a number there, and no turn.
func (m *meeting) see(ctx context.Context, rank int, alike rankSet) error {
	if err := m.reach(ctx, rank, slot(m.turn), m.turn, alike); err != nil {
		return err
	}
	return m.compareSlots(rank, m.turn)
}

// compareSlots compares what a rank called in a turn with what this one did.
func (m *meeting) compareSlots(rank int, turn uint64) error {
	theirs, mine := m.parts[rank][slot(turn):][:slotHead], &m.heads[turn%slots]
	if theirs[1] == mine[1] && theirs[2] == mine[2] && theirs[callAt]>>numberShift == mine[callAt]>>numberShift {
		return nil
	}
	return m.differ(rank, turn)
}

// differ is the error of ranks that called different things in a turn, or as different numbers.
func (m *meeting) differ(rank int, turn uint64) error {
	s, shadow := m.sleeper.state, m.comm.Shadow()
	called := func(head []uint64) (signature, uint32) {
		return signature(mpi.Bytes(head[1:callAt])), uint32(head[callAt] >> numberShift)
	}
	theirs, other := called(m.parts[rank][slot(turn):])
	mine, seq := called(m.heads[turn%slots][:])
	switch {
	case other != seq:
		return outOfStep(mine, seq, m.me, theirs, other, rank, shadow.Host(rank))
	case seq != m.seq: // a turn before this one
		return s.mismatchBefore(shadow, m.seq, rank)
	}
	return s.mismatch(shadow, seq, mine, rank, theirs)
}

// take makes this rank's result of what was shown.
func (m *meeting) take() {
	n := m.entry.count * m.entry.typ.size
	from, to := m.blockOffset(m.me), m.blockOffset(m.me+1)
	whole := func(r int) []byte { return m.shown(r, 0, n) }
	mine := func(r int) []byte { return m.shown(r, from, to) }
	theirs := func(r int) []byte { return m.shown(r, 0, m.blockOffset(r+1)-m.blockOffset(r)) }
	switch m.entry.kind {
	case plan.Bcast:
		if m.me != m.entry.root {
			copy(m.recv, whole(m.entry.root))
		}
	case plan.Reduce:
		if m.me == m.entry.root {
			m.fold(m.recv, len(m.parts), whole)
		}
	case plan.Allreduce:
		m.fold(m.recv, len(m.parts), whole)
	case plan.Scan:
		m.fold(m.recv, m.me+1, whole)
	case plan.Exscan:
		m.fold(m.recv, m.me, whole)
	case plan.ReduceScatter:
		if from < to { // else it has not waited for what the others show
			m.fold(m.recv[:to-from], len(m.parts), mine)
		}
	case plan.Gather:
		if m.me == m.entry.root {
			m.collect(theirs)
		}
	case plan.Allgather:
		m.collect(theirs)
	case plan.Scatter:
		if m.me != m.entry.root || !m.entry.inPlace {
			copy(m.recv, mine(m.entry.root))
		}
	case plan.Alltoall:
		m.collect(mine)
	}
}

// fold combines what the first n ranks showed, in their order.
func (m *meeting) fold(dst []byte, n int, shown func(rank int) []byte) {
	switch n {
	case 0:
	case 1:
		copy(dst, shown(0))
	default:
		m.entry.combine(dst, shown(0), shown(1))
		for r := 2; r < n; r++ {
			m.entry.combine(dst, dst, shown(r))
		}
	}
}

// collect puts what the ranks showed one after the other.
func (m *meeting) collect(shown func(rank int) []byte) {
	for r := range m.parts {
		copy(m.recv[m.blockOffset(r):m.blockOffset(r+1)], shown(r))
	}
}
