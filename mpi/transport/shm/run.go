package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/fisterra-hpc/fisterra/internal/fence"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Small messages of a stream that are alike but for their payloads share cells. A cache line that travels from processor to
// processor costs more than the handling of a message: a cell with room takes more of them, and one line then travels for
// all. The sender adds to the cell that it wrote last by storing word 0 again, with a count one higher. Nobody else ever
// writes to that cell, so the sender need not wait for the line to come back from the receiver. The receiver reads a run as
// far as it goes, and leaves it once it is full or the next cell is there; what was added before the next cell was begun is
// visible by then.
//
// Where messages are answered one by one, none waits together with another, and adding to a cell that has been read would
// only fetch its line back. So cells take runs only after some messages to a peer from which nothing has come meanwhile.

const (
	// runAfter is how many messages go unanswered before cells take runs.
	runAfter = 2
	runWords = len(cell{}) - 2
	// runBytes is the longest payload of which two fit into a cell.
	runBytes = runWords / 2 * 8
)

// run is what the sender knows of the cell that it wrote last, so that it need not look there.
type run struct {
	w0       uint64 // 0: the cell takes no more
	cell     *cell
	envelope uint64
	kind     transport.Kind
	length   int      // of each payload
	words    []uint64 // of the cell, for payloads
	next     int      // index in words for the next payload
	stride   int      // from one payload to the next
}

// begin makes r the run of a cell with one payload. It sets the fields one by one, as they are read later: a struct composed
// elsewhere would be copied by loads of two fields at once, which wait until the stores of both have reached the cache (see
// envelope).
func (r *run) begin(c *cell, seq uint32, kind transport.Kind, envelope uint64, n int) {
	r.w0 = word0(kind, formRun, runInline(n, 1)) | uint64(seq)
	r.cell, r.words, r.envelope, r.kind = c, c[len(cell{})-runWords:], envelope, kind
	r.length, r.stride, r.next = n, stride(n), stride(n)
}

// stride is how many words a payload of n bytes takes in a run.
func stride(n int) int { return max(1, (n+7)/8) }

// runInline packs the length and the number of a run's payloads into the length field of word 0.
func runInline(n, count int) int { return n | count<<8 }

func runLength(w0 uint64) int { return int(uint8(w0 >> 48)) }
func runCount(w0 uint64) int  { return int(w0 >> 56) }

const (
	oneMore   = 1 << 56 // in word 0, of the count
	countBits = 0xff << 56
)

// runFull reports whether a run has no room for one more.
func runFull(w0 uint64) bool { return (runCount(w0)+1)*stride(runLength(w0)) > runWords }

// position tells how far this rank has read what the peer sends.
func (in *inbox) position() uint64 { return in.next<<8 | uint64(in.parts) }

// streaming counts a message to the peer, and reports whether so many have gone unanswered that
// the next cell is to take a run.
func (ep *endpoint) streaming() bool {
	out := &ep.out
	if at := ep.in.position(); out.heard != at {
		out.heard, out.unanswered = at, 0
	}
	out.unanswered++
	return out.unanswered > runAfter
}

// send writes one message of at most eagerBytes: to the cell written last if that takes it, else to the next. It takes only
// messages like those in it, and none once the peer has answered. A word that is added needs no call, so nothing has to be
// stored and loaded again for one: each store waits for those before it, and they for lines that the receiver has.
func (ep *endpoint) send(h *transport.Header, payload []byte) transport.Outcome {
	out := &ep.out
	r, n := &out.run, len(payload)
	if r.w0 == 0 || r.kind != h.Kind || r.length != n || r.envelope != envelope(h) || h.Bytes != uint64(n) || h.Token|h.Aux != 0 ||
		out.heard != ep.in.position() || len(out.streams) > 0 {
		r.w0 = 0
		return ep.sendNext(h, payload)
	}
	if n == 8 { // no call, and no load from the cell, whose line the receiver may have by now
		r.words[r.next] = binary.NativeEndian.Uint64(payload)
	} else {
		copy(r.cell.bytes(len(cell{})-runWords+r.next, n), payload)
	}
	r.w0 += oneMore
	fence.Store(&r.cell[0], r.w0)
	if r.next += r.stride; r.next+r.stride > runWords {
		r.w0 = 0
	}
	ep.notify()
	return transport.Sent
}

// look loads word 0 of the cell to be read next, and reports whether there is something in it that has not been read. It
// may go on to the next cell: not while one is being read.
func (ep *endpoint) look() (w0 uint64, ok bool) {
	in := &ep.in
	if in.parts != 0 {
		return ep.lookFurther()
	}
	return in.cells[in.next&cellMask].ready(uint32(in.next + 1))
}

// arrived reports whether there is something that has not been read.
func (ep *endpoint) arrived() bool {
	_, ok := ep.look()
	return ok
}

// lookFurther is look where a run has been read as far as it went.
func (ep *endpoint) lookFurther() (uint64, bool) {
	in := &ep.in
	w0, _ := in.cells[in.next&cellMask].ready(0)
	if (w0^in.run)&^countBits != 0 || runCount(w0) < in.parts {
		return 0, true // a cell like that is malformed, as take will say
	}
	if runCount(w0) > in.parts {
		return w0, true
	}
	if !runFull(w0) {
		if _, begun := in.cells[(in.next+1)&cellMask].ready(uint32(in.next + 2)); !begun {
			return w0, false
		}
		// The last addition came before the next cell was begun, but perhaps after word 0 was loaded above.
		if w0, _ = in.cells[in.next&cellMask].ready(0); w0 != in.run|uint64(in.parts)*oneMore {
			return w0, true
		}
	}
	in.parts = 0
	ep.advance()
	return in.cells[in.next&cellMask].ready(uint32(in.next + 1))
}

// runPart is message i of a run, or an error if the sender cannot have written it.
func (c *cell) runPart(w0 uint64, i int) ([]byte, error) {
	n, count := runLength(w0), runCount(w0)
	if n > runBytes || i >= count || count*stride(n) > runWords || cellKind(w0) == transport.Data {
		return nil, fmt.Errorf("message %d of %d, %d bytes each, in a cell: %w", i, count, n, errMalformed)
	}
	return c.bytes(2+i*stride(n), n), nil
}

// handOver gives the sink those messages of a run that have not been read, and stays at its cell.
func (ep *endpoint) handOver(s transport.Sink, c *cell, w0 uint64) error {
	in := &ep.in
	in.run = w0 &^ countBits
	if _, err := c.runPart(w0, in.parts); err != nil {
		return err
	}
	n, count, w1 := runLength(w0), runCount(w0), c[1]
	if runFull(w0) { // the sender has gone on: the next cell comes while this one's messages are handed over
		fence.Fetch(&in.cells[(in.next+1)&cellMask][0])
	}
	in.header = transport.Header{Kind: cellKind(w0), Context: uint32(w1), Tag: int32(w1 >> 32), Bytes: uint64(n)}
	if b, ok := s.(transport.Batcher); ok && count-in.parts > 1 {
		step := stride(n)
		in.parts += b.Batch(ep.rank, &in.header, c.bytes(2+in.parts*step, (count-in.parts)*step*8), step*8, count-in.parts)
	}
	for in.parts < count && ep.state == up {
		payload := c.bytes(2+in.parts*stride(n), n)
		in.parts++
		s.Message(ep.rank, &in.header, payload)
	}
	return nil
}
