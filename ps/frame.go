package ps

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// A frame is a header of headerBytes and, behind it, a payload of at most
// inlineBytes. Longer payloads are messages of their own: a server posts the
// receive for one only when it has room, so they wait at the worker, not in
// the server's memory.
const (
	headerBytes = 64
	inlineBytes = 16 << 10
	frameBytes  = headerBytes + inlineBytes
	frameMagic  = 0x31535046 // "FPS1"
)

// op is what a frame asks for.
type op uint8

const (
	opPush       op = 1 + iota // a gradient; answered when it is taken
	opPull                     // values, once their version is reached
	opPushPull                 // a gradient; answered by the values after it
	opSet                      // values, or an optimizer's slot, replaced as they are
	opStep                     // add to the shared global step
	opBarrier                  // answered when every worker has asked
	opDone                     // a worker has finished
	opServerDone               // a server has heard from all workers
	opAlive                    // a sign of life of a worker
	opReply
	opEnd
)

var opNames = [...]string{"", "push", "pull", "push-pull", "set", "step", "barrier", "done", "server-done", "alive", "reply"}

func (o op) String() string {
	if o > 0 && o < opEnd {
		return opNames[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// flags of a frame.
const (
	flagStep    uint8 = 1 << iota // request: the answer is to say the global step, and whether everybody stops; reply: this answer does
	flagStop                      // push, step: the sender was told to stop; reply: everybody stops
	flagDropped                   // reply: the gradient came too late and was not used
	flagForever                   // reply to done: the server stays, there is no final barrier
	flagsAll    = flagStep | flagStop | flagDropped | flagForever
)

// status of a reply.
const (
	statusOK      uint16 = iota
	statusRefused        // the request was wrong; the payload says why
	statusFailed         // the run has failed; the payload says why
	statusEnd
)

// header is the fixed part of a frame. Byte order on the wire is little-endian;
// payloads are the elements' own bytes.
type header struct {
	op      op
	flags   uint8
	status  uint16
	config  uint32  // fingerprint of the sender's configuration
	table   uint32  // index of the table
	block   uint32  // index of the block in its table
	seq     uint32  // the worker's request number, and tag of answer and payload
	slot    uint32  // 0 the values, 1... the optimizer's vectors
	count   uint32  // elements of the payload, inline or apart
	inline  uint32  // bytes of payload in this frame
	version int64   // updates the sender has seen, wants, or has made
	weight  float64 // push: what the gradient's sum is to be divided by
	aux     int64   // step, push: to add to the global step; reply: global step; done: status<<32 | epoch
}

// encode writes the header to the first headerBytes of b.
func (h *header) encode(b []byte) {
	_ = b[headerBytes-1]
	le := binary.LittleEndian
	le.PutUint32(b[0:], frameMagic)
	b[4], b[5] = byte(h.op), h.flags
	le.PutUint16(b[6:], h.status)
	le.PutUint32(b[8:], h.config)
	le.PutUint32(b[12:], h.table)
	le.PutUint32(b[16:], h.block)
	le.PutUint32(b[20:], h.seq)
	le.PutUint32(b[24:], h.slot)
	le.PutUint32(b[28:], h.count)
	le.PutUint32(b[32:], h.inline)
	le.PutUint32(b[36:], 0)
	le.PutUint64(b[40:], uint64(h.version))
	le.PutUint64(b[48:], math.Float64bits(h.weight))
	le.PutUint64(b[56:], uint64(h.aux))
}

// divides reports whether a sum of gradients can be divided by a weight.
func divides(weight float64) bool { return weight > 0 && weight <= math.MaxFloat64 }

// decode reads a frame and returns its inline payload, a view of b. Where a frame is refused, h has what the header
// says if it could be read, else it is zero. The error does not say who sent the frame.
func (h *header) decode(b []byte) (payload []byte, err error) {
	bad := func(format string, args ...any) ([]byte, error) {
		return nil, fmt.Errorf("%w: %s", ErrFrame, fmt.Sprintf(format, args...))
	}
	*h = header{}
	if len(b) < headerBytes {
		return bad("%d bytes; a header has %d", len(b), headerBytes)
	}
	le := binary.LittleEndian
	if m := le.Uint32(b); m != frameMagic {
		return bad("begins with %#08x, not %#08x", m, frameMagic)
	}
	*h = header{
		op: op(b[4]), flags: b[5], status: le.Uint16(b[6:]), config: le.Uint32(b[8:]),
		table: le.Uint32(b[12:]), block: le.Uint32(b[16:]), seq: le.Uint32(b[20:]), slot: le.Uint32(b[24:]),
		count: le.Uint32(b[28:]), inline: le.Uint32(b[32:]),
		version: int64(le.Uint64(b[40:])), weight: math.Float64frombits(le.Uint64(b[48:])), aux: int64(le.Uint64(b[56:])),
	}
	payload = b[headerBytes:]
	switch {
	case h.op < opPush || h.op >= opEnd:
		return bad("unknown operation %d", b[4])
	case h.flags&^flagsAll != 0:
		return bad("unknown flags %#x", h.flags)
	case h.status >= statusEnd:
		return bad("unknown status %d", h.status)
	case le.Uint32(b[36:]) != 0:
		return bad("reserved bytes are not zero")
	case h.seq > maxSeq:
		return bad("request number %d is above %d", h.seq, maxSeq)
	case int(h.inline) != len(payload):
		return bad("%d payload bytes, the header says %d", len(payload), h.inline)
	case len(payload) > inlineBytes:
		return bad("%d payload bytes; at most %d travel in a frame", len(payload), inlineBytes)
	case (h.op == opPush || h.op == opPushPull) && !divides(h.weight):
		return bad("weight %v; want a positive number", h.weight)
	}
	return payload, nil
}

// answerable reports whether the sender of a frame, even of a wrong one, can be answered: the frame asks for
// something, and there is a tag for its request number.
func (h *header) answerable(t tags) bool {
	return h.op != 0 && h.op != opReply && uint64(h.seq) < uint64(t)
}

// Tags. The messages of one request have tags of their own, made from its number, so that the payload of an answer
// is received in place.
const (
	maxSeq     = 1<<24 - 1
	tagRequest = 0
)

// tags is how many request numbers a communicator has tags for: the system's MPI library may have few (Open MPI
// over UCX 2²³, the standard promises 2¹⁵).
type tags int

func tagsOf(c *mpi.Comm) tags { return tags(min(maxSeq+1, (c.MaxTag()+1)/5)) }

func (t tags) next(seq uint32) uint32 { return (seq + 1) % uint32(t) }

// The tags of one request, besides tagRequest for its frame: the frame of the reply and the payload of the request,
// which goes to the server, then the payload of the reply.
func (t tags) reply(seq uint32) int          { return int(t) + int(seq) }
func (t tags) requestPayload(seq uint32) int { return 2*int(t) + int(seq) }
func (t tags) replyPayload(seq uint32) int   { return 3*int(t) + int(seq) }

// FreeTag is a tag on c that workers and servers do not use.
func FreeTag(c *mpi.Comm) int { return 4 * int(tagsOf(c)) }
