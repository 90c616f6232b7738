package collective

import "context"

// long is an allreduce in which rank r combines slice r of all vectors out of the
// others' memory. In steps of at most boxBytes of each slice, every rank shows the
// others their part of its vector, combines its own slice, shows the result, and
// takes the others'.
//
// Cost per rank: (P-1)/P·n shown, as much combined, as much taken.
func (m *meeting) long(ctx context.Context) error {
	a := m.arena
	if err := m.compareCalls(ctx); err != nil {
		return err
	}
	n, size, elem := len(m.send), len(a.parts), m.entry.typ.size
	// Slices are cut alike on all ranks, in elements.
	first := func(r int) int { return n / elem * r / size * elem }
	longest := (n/elem/size + 1) * elem
	box := boxBytes / elem * elem
	for lo := 0; lo < longest; lo += box {
		a.steps++
		piece := func(r int) (from, to int) {
			return min(first(r)+lo, first(r+1)), min(first(r)+lo+box, first(r+1))
		}
		if err := m.step(ctx, piece); err != nil {
			return err
		}
	}
	return nil
}

// compareCalls is the part of short that is not arithmetic.
func (m *meeting) compareCalls(ctx context.Context) error {
	a := m.arena
	a.turn++
	m.show(nil)
	return m.seeAll(ctx, len(a.parts))
}

// step does one piece of every slice. A box is free again when all have shown
// the result that they combined out of it; a result, when all have shown
// the inputs of the next step.
func (m *meeting) step(ctx context.Context, piece func(r int) (from, to int)) error {
	a := m.arena
	for r := range a.parts {
		if from, to := piece(r); r != a.me && from < to {
			copy(a.box(a.me, r, to-from), m.send[from:to])
		}
	}
	a.raise(flagInput, a.steps)

	from, to := piece(a.me)
	input := func(r int) []byte {
		if r == a.me {
			return m.send[from:to]
		}
		return a.box(r, a.me, to-from)
	}
	// All inputs first: some rank may still be taking the last result.
	for i := 1; i < len(a.parts); i++ {
		if err := m.reach(ctx, (a.me+i)%len(a.parts), flagInput, a.steps); err != nil {
			return err
		}
	}
	out := a.result(a.me, to-from)
	if from < to {
		m.entry.combine(out, input(0), input(1))
		for r := 2; r < len(a.parts); r++ {
			m.entry.combine(out, out, input(r))
		}
	}
	a.raise(flagResult, a.steps)
	copy(m.recv[from:to], out)
	for i := 1; i < len(a.parts); i++ {
		r := (a.me + i) % len(a.parts)
		if err := m.reach(ctx, r, flagResult, a.steps); err != nil {
			return err
		}
		if from, to := piece(r); from < to {
			copy(m.recv[from:to], a.result(r, to-from))
		}
	}
	return nil
}
