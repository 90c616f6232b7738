package collective

import (
	"context"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// takeTicket decides whether the execution goes through shared memory. The state is locked.
func (x *execution) takeTicket() {
	x.arena = nil
	a := x.state.arena
	if a == nil || x.floating || x.entry.library || x.entry.check || x.entry.kind != plan.Barrier && x.entry.kind != plan.Allreduce {
		return
	}
	a.tickets++
	x.arena, x.ticket = a, a.tickets
}

// meet does a barrier or an allreduce in shared memory.
func (x *execution) meet(ctx context.Context) error {
	x.arena.enter(x.ticket)
	defer x.arena.leave()
	if n := len(x.mem[plan.Send]); n > slotBytes {
		return x.meetLong(ctx, n)
	}
	return x.meetShort(ctx)
}

// meetShort: every rank shows its vector and combines all of them itself, in
// the order of ranks. One crossing of a cache line, (P-1)·n bytes read.
func (x *execution) meetShort(ctx context.Context) error {
	a := x.arena
	a.turn++
	send, recv := x.mem[plan.Send], x.mem[plan.Recv]
	n := signatureBytes + len(send)
	mine := a.slot(a.me, a.turn, n)
	copy(mine, x.signature[:])
	copy(mine[signatureBytes:], send)
	a.raise(flagSlot, a.turn)
	for r := range a.parts {
		if r == a.me {
			continue
		}
		if err := x.reach(ctx, r, flagSlot, a.turn); err != nil {
			return err
		}
		if other := signature(a.slot(r, a.turn, signatureBytes)); other != x.signature {
			return x.signature.compare(a.me, r, x.comm.Host(r), other)
		}
	}
	if len(send) == 0 {
		return nil
	}
	x.entry.combine(recv, a.slot(0, a.turn, n)[signatureBytes:], a.slot(1, a.turn, n)[signatureBytes:])
	for r := 2; r < len(a.parts); r++ {
		x.entry.combine(recv, recv, a.slot(r, a.turn, n)[signatureBytes:])
	}
	return nil
}

// meetLong: rank r combines slice r of all vectors out of the others' memory.
// In steps of at most boxBytes of each slice, every rank shows the others their
// part of its vector, combines its own slice, shows the result, and takes the others'.
// Per rank (P-1)/P·n shown, as much combined, as much taken.
func (x *execution) meetLong(ctx context.Context, n int) error {
	a := x.arena
	if err := x.compareCalls(ctx); err != nil {
		return err
	}
	size := len(a.parts)
	elem := x.entry.typ.size
	// Slices are cut alike on all ranks, in elements.
	first := func(r int) int { return n / elem * r / size * elem }
	longest := (n/elem/size + 1) * elem
	box := boxBytes / elem * elem
	for lo := 0; lo < longest; lo += box {
		a.steps++
		piece := func(r int) (from, to int) {
			return min(first(r)+lo, first(r+1)), min(first(r)+lo+box, first(r+1))
		}
		if err := x.step(ctx, piece); err != nil {
			return err
		}
	}
	return nil
}

// compareCalls is the part of meetShort that is not arithmetic.
func (x *execution) compareCalls(ctx context.Context) error {
	send := x.mem[plan.Send]
	x.mem[plan.Send] = nil
	err := x.meetShort(ctx)
	x.mem[plan.Send] = send
	return err
}

// step does one piece of every slice. A box is free again when all have shown
// the result that they combined out of it; a result, when all have shown
// the inputs of the next step.
func (x *execution) step(ctx context.Context, piece func(r int) (from, to int)) error {
	a := x.arena
	send, recv := x.mem[plan.Send], x.mem[plan.Recv]
	for r := range a.parts {
		if from, to := piece(r); r != a.me && from < to {
			copy(a.box(a.me, r, to-from), send[from:to])
		}
	}
	a.raise(flagInput, a.steps)

	from, to := piece(a.me)
	input := func(r int) []byte {
		if r == a.me {
			return send[from:to]
		}
		return a.box(r, a.me, to-from)
	}
	// All inputs first: some rank may still be taking the last result.
	for i := 1; i < len(a.parts); i++ {
		if err := x.reach(ctx, (a.me+i)%len(a.parts), flagInput, a.steps); err != nil {
			return err
		}
	}
	out := a.result(a.me, to-from)
	if from < to {
		x.entry.combine(out, input(0), input(1))
		for r := 2; r < len(a.parts); r++ {
			x.entry.combine(out, out, input(r))
		}
	}
	a.raise(flagResult, a.steps)
	copy(recv[from:to], out)
	for i := 1; i < len(a.parts); i++ {
		r := (a.me + i) % len(a.parts)
		if err := x.reach(ctx, r, flagResult, a.steps); err != nil {
			return err
		}
		if from, to := piece(r); from < to {
			copy(recv[from:to], a.result(r, to-from))
		}
	}
	return nil
}
