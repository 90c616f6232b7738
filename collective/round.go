package collective

import (
	"context"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// A round of a plan: its local steps, its messages, and what is done while these are under way. What arrives is in
// incoming.go; how an execution goes from round to round, and waits, in execution.go.

// start does the local steps ahead of a round's messages, posts its receives, starts its sends, and then does the local
// steps beside them.
func (x *execution) start(ctx context.Context, e effort) error {
	steps := x.entry.plan.Round(x.round)
	for len(steps) > 0 && steps[0].Action.Local() {
		x.local(&steps[0])
		steps = steps[1:]
	}
	if err := x.startMessages(ctx, steps, e); err != nil {
		return err
	}
	for i := range steps {
		if st := &steps[i]; st.Action.Local() {
			if err := x.beside(ctx, st); err != nil {
				return err
			}
		}
	}
	return nil
}

// besideBytes are copied between two looks after the messages of a round: a socket has more to send meanwhile.
const besideBytes = 128 << 10

// beside does a local step while the messages of the round are under way, and looks after them.
func (x *execution) beside(ctx context.Context, st *plan.Step) error {
	n := st.N * x.entry.typ.size
	if st.Action != plan.Copy || x.state.sizesOnly || n <= besideBytes {
		x.local(st)
		return nil
	}
	dst, src := x.span(st.Dst, st.N), x.span(st.A, st.N)
	for at := 0; at < n; at += besideBytes {
		end := min(at+besideBytes, n)
		memcopy.Piece(dst[at:end], src[at:end], n, 1) // the others are mostly on other hosts
		if _, err := x.settle(ctx, tryOnce); err != nil {
			return err
		}
	}
	return nil
}

// local does a step that concerns no other rank.
func (x *execution) local(st *plan.Step) {
	if st.Action == plan.Copy {
		x.copy(x.span(st.Dst, st.N), x.span(st.A, st.N))
		return
	}
	x.combine(st, x.span(st.Dst, st.N), x.span(st.A, st.N), x.span(st.B, st.N))
}

// startMessages posts the receives of a round and then starts its sends.
func (x *execution) startMessages(ctx context.Context, steps []plan.Step, e effort) error {
	x.incoming, x.receives, x.outgoing, x.to = x.incoming[:0], x.receives[:0], x.outgoing[:0], x.to[:0]
	x.in = 0
	x.started, x.out = true, 0
	puts, only := 0, -1
	stage, parts := 0, 0
	for i := range steps {
		st := &steps[i]
		switch st.Action {
		case plan.Get, plan.Fold:
			x.expect(st, &stage, &parts)
		case plan.Put, plan.PutParts:
			puts++
			only = i
		}
	}
	if err := x.room(stage, parts, steps); err != nil {
		return err
	}
	for i := range x.incoming {
		if !x.heldBack(i) {
			x.postFirst(&x.incoming[i])
		}
	}
	if len(x.incoming) > 1 || len(x.expected) > 0 {
		x.expectAll()
	}
	if puts == 1 && e == untilDone && !x.state.takesBack && x.signed(steps[only].N) {
		return x.sendNow(ctx, &steps[only], stage)
	}
	for i := range steps {
		if a := steps[i].Action; a == plan.Put || a == plan.PutParts {
			stage = x.send(&steps[i], stage)
		}
	}
	x.out = len(x.outgoing)
	return nil
}

// room sees to the memory that messages of the round pass through.
func (x *execution) room(stage, parts int, steps []plan.Step) (err error) {
	for i := range steps {
		if st := &steps[i]; (st.Action == plan.Put || st.Action == plan.PutParts) && x.signed(st.N) {
			stage += stageBytes(st.N * x.entry.typ.size)
		}
	}
	if stage > len(x.stage) {
		x.stage = make([]byte, stage)
	}
	if parts > len(x.parts) {
		x.parts, err = x.state.scratch(parts)
	}
	return err
}

// sendNow is the round's only send, short: the system's MPI library is quicker without a request.
func (x *execution) sendNow(ctx context.Context, st *plan.Step, stage int) error {
	if broken := x.waitFor(mpi.Request{}, st.Peer); broken != nil {
		return broken.Err
	}
	err := mpi.Send(x.until.begin(ctx), x.shadow, x.sign(st, stage), int(st.Peer), x.tag)
	x.until.end()
	return err
}

// sign puts signature and payload together.
func (x *execution) sign(st *plan.Step, stage int) []byte {
	n := st.N * x.entry.typ.size
	b := x.stage[stage:][:signatureBytes+n]
	copy(b, x.signature[:])
	copy(b[signatureBytes:], x.span(st.A, st.N))
	return b
}

// send starts a Put or all parts of a PutParts; it returns the next free
// place in stage.
func (x *execution) send(st *plan.Step, stage int) int {
	if x.signed(st.N) {
		x.give(x.sign(st, stage), st.Peer)
		return stage + stageBytes(st.N*x.entry.typ.size)
	}
	b, size := x.span(st.A, st.N), x.entry.typ.size
	if st.Action == plan.Put {
		x.give(b, st.Peer)
		return stage
	}
	for i := range st.Parts() {
		from, n := st.Piece(i)
		x.give(b[from*size:][:n*size], st.Peer)
	}
	return stage
}

// give starts the send of one message.
func (x *execution) give(b []byte, to int32) {
	x.outgoing = append(x.outgoing, mpi.Isend(x.shadow, b, int(to), x.tag))
	x.to = append(x.to, to)
}

// settle finishes the round's messages, receives first, in order, then sends.
func (x *execution) settle(ctx context.Context, e effort) (done bool, err error) {
	for x.in < len(x.incoming) {
		m := &x.incoming[x.in]
		for m.finished < m.count {
			r := &x.receives[m.first+m.finished%m.window]
			status, ok, err := x.await(ctx, *r, m.step.Peer, e)
			if !ok {
				return false, err
			}
			*r = mpi.Request{}
			if err := x.accept(m, status, err); err != nil {
				return false, err
			}
			m.finished++
			x.postNext(x.in)
		}
		x.in++
	}
	// The last first: the send that is waited for is the first to be given up, and a later one to the same rank, if it
	// stayed behind, would be received in place of that.
	for x.out > 0 {
		last := x.out - 1
		_, ok, err := x.awaitFirm(ctx, x.outgoing[last], x.to[last], e)
		if !ok {
			return false, err
		}
		x.outgoing[last] = mpi.Request{}
		if err != nil {
			return false, err
		}
		x.out--
	}
	return true, nil
}

// deliver copies or folds a received part into its place.
func (x *execution) deliver(m *incoming, b []byte) {
	lo, _ := x.piece(m, m.finished)
	dst := x.span(m.step.Dst, m.step.N)[lo:][:len(b)]
	if m.step.Action == plan.Get {
		copy(dst, b)
		return
	}
	x.combine(&m.step, dst, x.span(m.step.A, m.step.N)[lo:][:len(b)], b)
}

// combine stores a op b in dst, or b op a if the step says so.
func (x *execution) combine(st *plan.Step, dst, a, b []byte) {
	switch {
	case x.state.sizesOnly:
		x.state.charge(func(m *plan.Model) float64 { return m.Combine.At(len(dst)) })
	case st.Left:
		x.entry.combine(dst, b, a)
	default:
		x.entry.combine(dst, a, b)
	}
}

func (x *execution) copy(dst, src []byte) {
	if x.state.sizesOnly {
		x.state.charge(func(m *plan.Model) float64 { return m.Copy.At(len(dst)) })
		return
	}
	memcopy.Copy(dst, src)
}
