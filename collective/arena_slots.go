package collective

import (
	"context"
	"encoding/binary"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// throughSlots: every rank has shown in its slot what it contributes, and takes what it needs from the slots of the others. A
// slot has the turn, the call's signature and number, and a vector of up to inlineBytes, whose first bytes are in the same
// cache line; for a longer vector it says where in the store that is. Ranks that need nothing do not wait: a slot is
// written again only after all others have gone on from the turn that it was written for.
//
// Cost: one crossing of a cache line, and as many bytes read as are received.
func (m *meeting) throughSlots(ctx context.Context) error {
	if err := m.compareCalls(ctx); err != nil {
		return err
	}
	m.take()
	return nil
}

// order is the order in which ranks leave a barrier, as one of them sees it. A rank that others waited for in the call
// before the barrier leaves before them: if the program makes the same call again, that rank gets there first. In a crowd
// this holds among the ranks of one processor, too: one that leaves too early would take the processor, only to give it
// back within the next call.
type order struct {
	first    int     // the rank that leaves before all others, or nobody
	before   rankSet // ranks of this one's processor that leave before it
	followed bool    // others of its processor leave after this rank
	matters  bool    // whether there is any order
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
		if m.entry.gives(r, m.me) {
			o.before |= oneRank(r)
		}
		o.followed = o.followed || m.entry.gives(m.me, r)
	}
	if o.followed { // a chain would give the processor to the wrong one too often
		o.before = 0
	}
	o.matters = o.first != nobody || o.before != 0 || o.followed
	return o
}

// leaveInOrder is a barrier that ranks leave in an order. If one of them is first, the barrier costs a crossing more than
// if each left as soon as it sees that all have come. The ranks agree on the order: each has compared the call before the
// barrier with that of the first one.
func (m *meeting) leaveInOrder(ctx context.Context, o *order) error {
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

// awaitFirst waits until the first rank has left the barrier. The first rank itself waits until all have come, as do all
// ranks if none is first.
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

// give shows what this rank contributes, but for what nobody needs.
func (m *meeting) give() { m.showBut(m.entry.flow.leftOut, m.contribution()) }

// show writes the slot of this turn, its first word last.
func (m *meeting) show(vector []byte) { m.showBut(span{}, vector) }

// showBut is show, and leaves some bytes of the vector out.
func (m *meeting) showBut(leftOut span, vector []byte) {
	a := m.arena
	at := slot(a.turn)
	words, head := (*[slotHead + 1]uint64)(a.own[at:]), &a.heads[a.turn%slots]
	words[1] = binary.NativeEndian.Uint64(m.signature[:])
	words[2] = binary.NativeEndian.Uint64(m.signature[8:])
	number := uint64(m.seq)<<numberShift | a.pace.vote() | a.bufferVote[long] | a.bufferVote[short]<<shortVotes
	words[callAt] = number
	n := len(vector)
	if n <= inlineBytes {
		shown := a.own.bytes(at+slotHead, n)
		if leftOut.from > 0 {
			copy(shown, vector[:leftOut.from])
		}
		memcopy.Short(shown[leftOut.to:], vector[leftOut.to:])
	} else {
		a.stored = a.storedAt(n)
		words[slotHead] = uint64(a.stored)
		shown := a.own.bytes(storeAt+a.stored/8, n)
		memcopy.Owning(shown, vector[:leftOut.from])
		memcopy.Owning(shown[leftOut.to:], vector[leftOut.to:])
		a.stored += (n+lineBytes-1)/lineBytes*lineBytes + memcopy.ReadAheadBytes
	}
	a.raise(at, a.turn)
	head[1] = binary.NativeEndian.Uint64(m.signature[:]) // which nobody else waits for
	head[2] = binary.NativeEndian.Uint64(m.signature[8:])
	head[callAt] = number
	a.fetchAhead(n)
}

// storedAt is where in the store the next vector begins, if it has n bytes.
func (a *arena) storedAt(n int) int {
	if a.stored+n > a.store {
		return 0
	}
	return a.stored
}

// fetchAhead asks for the lines of the next slot behind the first one, for which raise asks: as many as the longer of the
// last two vectors took. If the last one lies in the store, it asks also for the lines in which the next one will lie there
// if it is as long.
func (a *arena) fetchAhead(nBytes int) {
	lines := 1
	if nBytes <= inlineBytes {
		lines = (slotHead*8 + nBytes + lineBytes - 1) / lineBytes
	} else {
		memcopy.OwnAhead(a.own.bytes(storeAt+a.storedAt(nBytes)/8, nBytes))
	}
	if most := max(lines, a.lines); most > 1 {
		memcopy.OwnAhead(a.own.bytes(slot(a.turn+1)+line, (most-1)*lineBytes))
	}
	a.lines = lines
}

// shown is a part of the n bytes that a rank showed. What this rank showed is taken from its own buffer, as it was given:
// its slot is no longer in its caches.
func (m *meeting) shown(rank, n int, part span, given []byte) []byte {
	if rank == m.me && !m.entry.flow.rereads {
		return given[part.from:part.to]
	}
	at := slot(m.turn) + slotHead
	if n > inlineBytes {
		at = storeAt + int(m.parts[rank][at])/8
	}
	return m.parts[rank].bytes(at, part.to)[part.from:]
}

// compareCalls waits for the ranks whose contributions this one needs, or for all that are to compare.
func (m *meeting) compareCalls(ctx context.Context) error {
	needs := m.entry.flow.needs
	for _, r := range m.others {
		if !needs.has(r) {
			continue
		}
		if err := m.see(ctx, r, needs); err != nil {
			return err
		}
	}
	return nil
}

// see waits until a rank, one of those that are waited for alike, has shown its vector, and compares the calls. It compares
// their numbers, too: a call that was refused on one of the ranks has had a number there, and no turn.
func (m *meeting) see(ctx context.Context, rank int, alike rankSet) error {
	at, w := slot(m.turn), &m.waited[rank]
	if w.comesFirst() && len(m.parts) == 2 {
		m.pauses[rank].Pass()
	}
	*w <<= 1
	if atomic.LoadUint64(&m.parts[rank][at]) < m.turn { // whoever comes last is spared the call
		*w |= 1
		if err := m.reach(ctx, rank, at, m.turn, alike); err != nil {
			return err
		}
	}
	return m.compareSlots(rank, m.turn)
}

// compareSlots compares what a rank called in a turn with what this one did.
func (m *meeting) compareSlots(rank int, turn uint64) error {
	if m.sameSlots(rank, turn) {
		return nil
	}
	return m.differ(rank, turn)
}

// sameSlots reports whether a rank called the same in a turn as this one did, as the same number.
func (a *arena) sameSlots(rank int, turn uint64) bool {
	theirs, mine := (*[slotHead]uint64)(a.parts[rank][slot(turn):]), &a.heads[turn%slots]
	return theirs[1] == mine[1] && theirs[2] == mine[2] && theirs[callAt]>>numberShift == mine[callAt]>>numberShift
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

// take makes this rank's result of what the ranks have shown.
func (m *meeting) take() {
	f := &m.entry.flow
	given := m.contribution()
	switch f.result {
	case copied:
		memcopy.Short(m.recv, m.shown(m.entry.root, f.shownBytes, f.takes, given))
	case combined:
		dst := m.recv[:f.takes.to-f.takes.from]
		if f.ranks == 2 { // for a few bytes the closure takes longer than all else here
			m.entry.combine(dst, m.shown(0, f.shownBytes, f.takes, given), m.shown(1, f.shownBytes, f.takes, given))
			return
		}
		m.entry.fold(dst, f.ranks, func(r int) []byte { return m.shown(r, f.shownBytes, f.takes, given) })
	case cutBlocks:
		for r := range m.parts {
			memcopy.Short(m.recv[m.entry.blockOffset(r):], m.shown(r, f.shownBytes, f.takes, given))
		}
	case wholeBlocks:
		for r := range m.parts {
			at := m.entry.blockOffset(r)
			n := m.entry.blockOffset(r+1) - at
			memcopy.Short(m.recv[at:], m.shown(r, n, span{0, n}, given))
		}
	}
}
