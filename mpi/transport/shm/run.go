package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Small messages in a stream, alike but for their payload, share cells. A cache line that travels
// from processor to processor costs more than the handling of a message; a cell that the
// receiver has not yet read can take more of them, and then one travels for
// all. The sender adds to the cell that it wrote last by a compare-and-swap of
// word 0; the receiver takes the cell by swapping word 0, after which the sender's
// attempt fails and it begins another.
//
// Where messages are answered one by one none waits with another, and an attempt would
// only fetch the line back: cells take runs only after some messages to a peer from whom
// nothing has come meanwhile.

const (
	// runAfter is how many messages go unanswered before cells take runs.
	runAfter = 2
	runWords = len(cell{}) - 2
	// runBytes is the longest payload of which two fit into a cell.
	runBytes = runWords / 2 * 8
)

// run is what the sender has in the cell that it wrote last, so that it need not look.
type run struct {
	w0       uint64 // 0: the cell takes no more
	envelope uint64
}

// stride is how many words a payload of n bytes takes in a run.
func stride(n int) int { return max(1, (n+7)/8) }

// runInline packs the length and the number of a run's payloads into the length field of word 0.
func runInline(n, count int) int { return n | count<<8 }

func runLength(w0 uint64) int { return int(uint8(w0 >> 48)) }
func runCount(w0 uint64) int  { return int(w0 >> 56) }

const oneMore = 1 << 56 // in word 0, of the count

// streaming counts a message to the peer, and reports whether so many have gone unanswered that
// the next cell is to take a run.
func (ep *endpoint) streaming() bool {
	out := &ep.out
	if out.heard != ep.in.next {
		out.heard, out.unanswered = ep.in.next, 0
	}
	out.unanswered++
	return out.unanswered > runAfter
}

// extend adds a message to the cell written last, and reports false if that takes no more, or
// not this one.
func (ep *endpoint) extend(h *transport.Header, envelope uint64, payload []byte) bool {
	out := &ep.out
	w0, n := out.run.w0, len(payload)
	words, count := stride(n), runCount(w0)
	out.run.w0 = 0
	if cellKind(w0) != h.Kind || runLength(w0) != n || out.run.envelope != envelope || (count+1)*words > runWords {
		return false
	}
	c := &out.cells[(out.next-1)&cellMask]
	copy(c.bytes(2+count*words, n), payload)
	if !atomic.CompareAndSwapUint64(&c[0], w0, w0+oneMore) {
		return false
	}
	out.run.w0 = w0 + oneMore
	ep.notify()
	return true
}

// taken takes a cell out of the sender's hands, unless that has been done, and returns its word 0. Changing the form makes
// the sender's next compare-and-swap fail, so after the swap the cell is ours. If the sender had added a message between our
// look and the swap, the swap has put an old count into the cell; we put back the count that it returned, with the new form.
func (c *cell) taken(w0 uint64) uint64 {
	if cellForm(w0) == formTaken {
		return w0
	}
	const form = uint64(formRun^formTaken) << 40
	last := atomic.SwapUint64(&c[0], w0^form)
	if last != w0 {
		atomic.StoreUint64(&c[0], last^form)
	}
	return last
}

// runPart is message i of a run that has been taken, or an error if the sender cannot have written it.
func (c *cell) runPart(w0 uint64, i int) ([]byte, error) {
	n, count := runLength(w0), runCount(w0)
	if n > runBytes || i >= count || count*stride(n) > runWords || cellKind(w0) == transport.Data {
		return nil, fmt.Errorf("message %d of %d, %d bytes each, in a cell: %w", i, count, n, errMalformed)
	}
	return c.bytes(2+i*stride(n), n), nil
}

// handOver gives the sink the messages of a run, from the first that Take has not taken.
func (ep *endpoint) handOver(s transport.Sink, c *cell, w0 uint64) error {
	in := &ep.in
	w0 = c.taken(w0)
	for more := true; more && ep.state == up; more = in.parts < runCount(w0) {
		payload, err := c.runPart(w0, in.parts)
		if err != nil {
			return err
		}
		w1 := c[1]
		in.header = transport.Header{Kind: cellKind(w0), Context: uint32(w1), Tag: int32(w1 >> 32), Bytes: uint64(len(payload))}
		in.parts++
		s.Message(ep.rank, &in.header, payload)
	}
	in.parts = 0
	return nil
}
