package collective

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// nearWindow is how many parts of a fold are under way at once if this rank reads the sender's memory itself: so many stay
// in the second-level cache. Over a network all parts are, since the permission to send the next one would queue behind
// outgoing data.
const nearWindow = 2

// incoming is a Get or Fold under way.
type incoming struct {
	step     plan.Step
	bytes    int // of the whole step
	part     int // bytes of the longest part
	count    int // parts
	posted   int
	finished int
	signed   bool
	stage    int  // its place in stage (signed) or parts
	inPlace  bool // a fold that is received where its result goes
	window   int  // parts under way at once
	first    int  // place of its requests in receives, window of them
}

// expect notes a receive and where it will land.
func (x *execution) expect(st *plan.Step, stage, parts *int) {
	size := x.entry.typ.size
	m := incoming{step: *st, bytes: st.N * size, part: st.N * size, count: 1, window: 1, signed: x.signed(st.N), first: len(x.receives)}
	if st.Action == plan.Fold && st.Parts() > 1 {
		m.count = st.Parts()
		m.part = st.Part * size
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
	case st.Action == plan.Fold && x.foldsInPlace(st):
		m.inPlace = true
	case st.Action == plan.Fold:
		m.stage = *parts
		*parts += m.window * m.part
	}
	x.incoming = append(x.incoming, m)
}

// foldsInPlace reports whether a fold is received where its result goes: it is if its operand lies elsewhere, which spares
// the caches another place. No other step needs that memory before: see plan.Verify.
func (x *execution) foldsInPlace(st *plan.Step) bool {
	return !memcopy.Overlap(x.span(st.Dst, st.N), x.span(st.A, st.N))
}

// stageBytes is what a signed message takes, kept aligned for any element.
func stageBytes(payload int) int { return (signatureBytes + payload + 15) &^ 15 }

// landing is where part i of a message is received.
func (x *execution) landing(m *incoming, i int) []byte {
	switch {
	case m.signed:
		return x.stage[m.stage:][:signatureBytes+m.bytes]
	case m.inPlace:
		from, n := x.piece(m, i)
		return x.span(m.step.Dst, m.step.N)[from:][:n]
	case m.step.Action == plan.Fold:
		_, n := x.piece(m, i)
		return x.parts[m.stage+i%m.window*m.part:][:n]
	}
	return x.span(m.step.Dst, m.step.N)
}

// piece is where part i of a message begins in it, and its length, in bytes.
func (x *execution) piece(m *incoming, i int) (from, n int) {
	if m.count == 1 {
		return 0, m.bytes
	}
	from, n = m.step.Piece(i)
	return from * x.entry.typ.size, n * x.entry.typ.size
}

// heldBack reports whether message i has to wait: an earlier one from the same rank has parts that are not posted yet, and
// messages between two ranks match in order.
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
	if !m.signed && err == nil && status.Bytes == len(b) && !x.looksSigned(b) {
		if m.step.Action == plan.Fold {
			x.deliver(m, b)
		}
		return nil
	}
	peer := int(m.step.Peer)
	sent := fmt.Sprintf("%d B", status.Bytes)
	if status.Bytes < 0 { // truncated, and the library does not tell how long it was, nor what of it is in b
		sent = fmt.Sprintf("more than %d B", len(b))
	} else if other, ok := readSignature(b[:min(len(b), status.Bytes)]); ok && other != x.signature {
		return x.state.mismatch(x.shadow, x.seq, x.signature, peer, other)
	}
	if status.Bytes == len(b) { // of the same call, as far as its signature tells
		sent = fmt.Sprintf("%d B", len(b)-signatureBytes)
	}
	return &mismatchError{text: fmt.Sprintf("rank %d called %v and expects %d B from rank %d (%s), which sent %s",
		x.state.rank, x.signature, len(b), peer, x.comm.Host(peer), sent)}
}

// looksSigned reports whether a message that should be long data is a shorter one of the same
// collective, sent by a rank that expects fewer elements: with its signature it has as many bytes.
func (x *execution) looksSigned(b []byte) bool {
	if len(b) > signedBytes+signatureBytes {
		return false
	}
	s, ok := readSignature(b)
	s[5] = x.signature[5] // it may be by another plan
	return ok && bytes.Equal(s[:8], x.signature[:8])
}
