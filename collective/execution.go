package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// nearWindow is how many parts of a fold are under way at once from a rank
// whose memory this one reads itself: they stay in the second-level cache. Over a network all
// are, since the permission to send the next one would queue behind outgoing data.
const nearWindow = 2

// execution runs one plan once; they are pooled per entry. What is not
// atomic or under mu is guarded by turn.
type execution struct {
	state     *state
	entry     *entry
	comm      *mpi.Comm // alive while the collective is
	shadow    *mpi.Comm
	seq       uint32
	tag       int
	signature signature

	mem   [3][]byte // Send, Recv, Work
	stage []byte    // signed messages of the round
	parts []byte    // landing place of folds, window parts for each

	native   mpi.Request // of the system's MPI library
	round    int
	started  bool       // the round's messages are under way
	incoming []incoming // of the round
	receives []mpi.Request
	outgoing []mpi.Request
	in, out  int // the first that may be unfinished

	spoilt bool // memory may still be in use: not for the pool
	err    *Error

	// turn is held by whoever advances the execution: its caller or, for a
	// nonblocking one, the look-out now and then.
	turn     sync.Mutex
	live     atomic.Uint32 // seq while in use, else 0
	progress atomic.Uint32 // grows with every message
	ended    bool
	floating bool // nonblocking

	mu      sync.Mutex
	blocked mpi.Request // what the waiting goroutine sleeps on
	peer    int32       // the rank it waits for
}

// incoming is a Get or Fold under way.
type incoming struct {
	step     plan.Step
	bytes    int // of the whole step
	part     int // bytes of one part
	count    int // parts
	posted   int
	finished int
	signed   bool
	stage    int // its place in stage (signed) or parts
	window   int // parts under way at once
	first    int // place of its requests in receives, window of them
}

func newExecution(s *state, e *entry) *execution {
	x := &execution{state: s, entry: e}
	x.mem[plan.Work] = s.scratch(e.plan.Work * e.typ.size)
	return x
}

// begin readies the execution for a call. The state is locked.
func (x *execution) begin(c *mpi.Comm, seq uint32, send, recv []byte) {
	x.comm, x.shadow = c, c.Shadow()
	x.seq, x.tag = seq, int(seq)
	x.mem[plan.Send], x.mem[plan.Recv] = send, recv
	x.round, x.started, x.err, x.ended = 0, false, nil, false
	x.signature = x.entry.signature
	x.live.Store(seq)
}

// advance runs the plan as far as it goes, to the end if block, and reports
// whether it has ended; then x.err is final and all memory is the caller's
// again, unless x.err is mpi.ErrInFlight. The caller has the turn.
func (x *execution) advance(ctx context.Context, block bool) bool {
	if !x.ended {
		x.ended = x.run(ctx, block)
	}
	return x.ended
}

func (x *execution) run(ctx context.Context, block bool) bool {
	if x.entry.library {
		_, ok, err := x.await(ctx, x.native, -1, block)
		if err != nil {
			x.fail(err)
		}
		return ok || err != nil
	}
	rounds := len(x.entry.plan.Rounds)
	for x.round < rounds {
		if !x.started {
			if err := x.start(ctx, block); err != nil {
				x.fail(err)
				return true
			}
		}
		done, err := x.settle(ctx, block)
		if err != nil {
			x.fail(err)
			return true
		}
		if !done {
			return false
		}
		x.round++
		x.started = false
	}
	return true
}

// start does the local steps of a round, posts its receives and then starts its sends.
func (x *execution) start(ctx context.Context, block bool) error {
	steps := x.entry.plan.Round(x.round)
	x.incoming, x.receives, x.outgoing = x.incoming[:0], x.receives[:0], x.outgoing[:0]
	x.in, x.out = 0, 0
	x.started = true
	puts, only := 0, -1
	stage, parts := 0, 0
	for i := range steps {
		st := &steps[i]
		switch st.Action {
		case plan.Copy:
			x.copy(x.span(st.Dst, st.N), x.span(st.A, st.N))
		case plan.Combine:
			x.combine(st, x.span(st.Dst, st.N), x.span(st.A, st.N), x.span(st.B, st.N))
		case plan.Get, plan.Fold:
			x.expect(st, &stage, &parts)
		default:
			puts++
			only = i
		}
	}
	x.room(stage, parts, steps)
	for i := range x.incoming {
		if !x.heldBack(i) {
			x.postFirst(&x.incoming[i])
		}
	}
	if puts == 1 && block && x.signed(steps[only].N) {
		return x.sendNow(ctx, &steps[only], stage)
	}
	for i := range steps {
		if a := steps[i].Action; a == plan.Put || a == plan.PutParts {
			stage = x.send(&steps[i], stage)
		}
	}
	return nil
}

// span is the memory of n elements.
func (x *execution) span(l plan.Loc, n int) []byte {
	size := x.entry.typ.size
	return x.mem[l.Buf][l.Off*size:][:n*size]
}

// signed: messages of n elements carry a signature.
func (x *execution) signed(n int) bool {
	return !x.state.sizesOnly && n*x.entry.typ.size <= signedBytes
}

// expect notes a receive and where it will land.
func (x *execution) expect(st *plan.Step, stage, parts *int) {
	size := x.entry.typ.size
	m := incoming{step: *st, bytes: st.N * size, part: st.N * size, count: 1, window: 1, signed: x.signed(st.N), first: len(x.receives)}
	if st.Action == plan.Fold && x.entry.plan.Parts(st.N) > 1 {
		m.count = x.entry.plan.Parts(st.N)
		m.part = x.entry.plan.Part * size
		m.window = m.count
		if transport, _ := x.shadow.Transport(int(st.Peer)); transport == "shm" {
			m.window = nearWindow
		}
	}
	for range m.window {
		x.receives = append(x.receives, mpi.Request{})
	}
	switch {
	case m.signed:
		m.stage = *stage
		*stage += stageBytes(m.bytes)
	case st.Action == plan.Fold:
		m.stage = *parts
		*parts += m.window * m.part
	}
	x.incoming = append(x.incoming, m)
}

// stageBytes is what a signed message takes, kept aligned for any element.
func stageBytes(payload int) int { return (signatureBytes + payload + 15) &^ 15 }

// room sees to the memory that messages of the round pass through.
func (x *execution) room(stage, parts int, steps []plan.Step) {
	for i := range steps {
		if st := &steps[i]; (st.Action == plan.Put || st.Action == plan.PutParts) && x.signed(st.N) {
			stage += stageBytes(st.N * x.entry.typ.size)
		}
	}
	if stage > len(x.stage) {
		x.stage = make([]byte, stage)
	}
	if parts > len(x.parts) {
		x.parts = x.state.scratch(parts)
	}
}

// landing is where part i of a message is received.
func (x *execution) landing(m *incoming, i int) []byte {
	n := min(m.part, m.bytes-i*m.part)
	switch {
	case m.signed:
		return x.stage[m.stage:][:signatureBytes+m.bytes]
	case m.step.Action == plan.Fold:
		return x.parts[m.stage+i%m.window*m.part:][:n]
	}
	return x.span(m.step.Dst, m.step.N)
}

// heldBack: a message from the same rank has parts that are not posted yet, and messages
// between two ranks match in order.
func (x *execution) heldBack(i int) bool {
	for j := range x.incoming[:i] {
		if m := &x.incoming[j]; m.step.Peer == x.incoming[i].step.Peer && m.posted < m.count {
			return true
		}
	}
	return false
}

// postFirst starts the receives of a message that may be under way together.
func (x *execution) postFirst(m *incoming) {
	for m.posted < m.window {
		x.post(m)
	}
}

// postNext goes on after a part of message i has come: with its next part, or
// with the messages that its last part held back.
func (x *execution) postNext(i int) {
	m := &x.incoming[i]
	if m.posted == m.count {
		return
	}
	x.post(m)
	for j := i + 1; m.posted == m.count && j < len(x.incoming); j++ {
		if n := &x.incoming[j]; n.posted == 0 && !x.heldBack(j) {
			x.postFirst(n)
		}
	}
}

// post starts the receive of a message's next part.
func (x *execution) post(m *incoming) {
	x.receives[m.first+m.posted%m.window] = mpi.Irecv(x.shadow, x.landing(m, m.posted), int(m.step.Peer), x.tag)
	m.posted++
}

// sendNow is the round's only send, short: it goes out without a request.
func (x *execution) sendNow(ctx context.Context, st *plan.Step, stage int) error {
	return mpi.Send(ctx, x.shadow, x.sign(st, stage), int(st.Peer), x.tag)
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
		x.outgoing = append(x.outgoing, mpi.Isend(x.shadow, x.sign(st, stage), int(st.Peer), x.tag))
		return stage + stageBytes(st.N*x.entry.typ.size)
	}
	b := x.span(st.A, st.N)
	part := len(b)
	if st.Action == plan.PutParts && x.entry.plan.Parts(st.N) > 1 {
		part = x.entry.plan.Part * x.entry.typ.size
	}
	for lo := 0; lo < len(b); lo += part {
		x.outgoing = append(x.outgoing, mpi.Isend(x.shadow, b[lo:min(lo+part, len(b))], int(st.Peer), x.tag))
	}
	return stage
}

// settle finishes the round's messages, receives first, in order.
func (x *execution) settle(ctx context.Context, block bool) (done bool, err error) {
	for x.in < len(x.incoming) {
		m := &x.incoming[x.in]
		for m.finished < m.count {
			r := &x.receives[m.first+m.finished%m.window]
			status, ok, err := x.await(ctx, *r, m.step.Peer, block)
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
	for x.out < len(x.outgoing) {
		_, ok, err := x.await(ctx, x.outgoing[x.out], -1, block)
		if !ok {
			return false, err
		}
		x.outgoing[x.out] = mpi.Request{}
		if err != nil {
			return false, err
		}
		x.out++
	}
	return true, nil
}

// await waits for a request, or tests it. ok is false while it has not
// finished, with an error if the collective has been called off.
func (x *execution) await(ctx context.Context, r mpi.Request, peer int32, block bool) (status mpi.Status, ok bool, err error) {
	x.mu.Lock()
	x.blocked, x.peer = r, peer
	broken := x.state.broken.Load()
	x.mu.Unlock()
	if broken != nil {
		return status, false, broken.Err
	}
	if block {
		status, err = r.Wait(ctx)
		ok = true
	} else if status, ok, err = r.Test(); !ok {
		return status, false, nil
	}
	x.progress.Add(1)
	return status, ok, err
}

// accept checks what has been received and puts it where it belongs.
func (x *execution) accept(m *incoming, status mpi.Status, err error) error {
	b := x.landing(m, m.finished)
	if err != nil && !errors.Is(err, mpi.ErrTruncated) {
		return err
	}
	if x.state.sizesOnly {
		if err == nil && m.step.Action == plan.Fold {
			x.combine(&m.step, b, b, b)
		}
		return err
	}
	if m.signed && err == nil && status.Bytes == len(b) && signature(b[:signatureBytes]) == x.signature {
		x.deliver(m, b[signatureBytes:])
		return nil
	}
	if !m.signed && err == nil && status.Bytes == len(b) {
		if m.step.Action == plan.Fold {
			x.deliver(m, b)
		}
		return nil
	}
	peer := int(m.step.Peer)
	if other, ok := readSignature(b[:min(len(b), status.Bytes)]); ok && other != x.signature {
		return x.signature.compare(x.state.rank, peer, x.comm.Host(peer), other)
	}
	return &mismatchError{text: fmt.Sprintf("rank %d called %v and expects %d B from rank %d (%s), which sent %d B",
		x.state.rank, x.signature, len(b), peer, x.comm.Host(peer), status.Bytes)}
}

// deliver copies or folds a received part into its place.
func (x *execution) deliver(m *incoming, b []byte) {
	lo := m.finished * m.part
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
	copy(dst, src)
}
