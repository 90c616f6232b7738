package native

import (
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// briefBytes is the largest message whose copying, some 10 µs, is short enough for the scheduler
// not to know of it: no goroutine needs the processor sooner, and a garbage collection can wait.
const briefBytes = 128 << 10

// brief is what blocking calls move short messages with, in one direction: a request that they use one after the
// other, and a chain of C calls prepared for it, in which only the message's own arguments change. With a message
// of 8 bytes every nanosecond between the two C calls counts, even the call of a Go function.
type brief struct {
	clib.Chain
	r *Request // not in flight
}

// briefly reports whether a message may go this way.
func (w *World) briefly(bytes int) bool {
	return bytes <= briefBytes && !w.closing && (!w.forgets || bytes < forgetBytes)
}

// aim makes the chain ready for operations that start starts, with another request.
func (b *brief) aim(w *World, start uintptr) {
	b.r = w.request()
	b.Start.Fn = start
	b.Start.A[2] = uintptr(w.abi.types[Byte])
	b.Start.A[6] = uintptr(unsafe.Pointer(&b.r.request))
	b.Poll.Fn = w.fn.test
	b.Poll.A[0] = uintptr(unsafe.Pointer(&b.r.request))
	b.Poll.A[1] = uintptr(unsafe.Pointer(&b.r.flag))
	b.Poll.A[2] = uintptr(unsafe.Pointer(&b.r.status))
	b.Flag = uintptr(unsafe.Pointer(&b.r.flag))
}

// begin gives the request what completing it needs.
func (b *brief) begin(op opcode, buf []byte, peer int) *Request {
	r := b.r
	r.buf, r.bytes, r.op, r.peer, r.flag = unsafe.Pointer(unsafe.SliceData(buf)), len(buf), op, peer, 0
	r.awaits, r.staged = false, false
	touch(r)
	return r
}

// carry prepares the chain for n bytes at p, and for asking up to tries times whether they have been moved.
func (b *brief) carry(p unsafe.Pointer, n int, peer, tag uintptr, comm handle, tries uintptr) {
	a := &b.Start.A
	a[0], a[1], a[3], a[4], a[5] = uintptr(p), uintptr(n), peer, tag, uintptr(comm)
	b.Tries = tries
}

// answered reports whether the operation was started, asked after, and is over.
func (b *brief) answered() bool {
	return int32(b.Start.R) == 0 && b.r.flag != 0 && int32(b.Poll.R) == 0
}

// sentAtOnce reports whether a send that was not asked after is over all the same, as its request tells.
func (b *brief) sentAtOnce(empty handle) bool {
	return int32(b.Start.R) == 0 && handle(b.r.request) == empty
}

// end forgets the buffer of an operation that is over.
func (b *brief) end() {
	touch(b.r)
	b.r.buf, b.r.awaits = nil, false
}

// awaitNotice makes a receive on c await a message or its notice, and returns where either goes: the buffer, if it
// has room for a notice.
func (r *Request) awaitNotice(c *Comm) (at unsafe.Pointer, bytes int) {
	r.awaits, r.staged = true, r.bytes < stagedBytes
	if r.staged {
		return unsafe.Pointer(&r.text), stagedBytes
	}
	if r.peer == c.rank || r.peer == AnySource {
		copy(r.stage()[:noticeBytes], unsafe.Slice((*byte)(r.buf), noticeBytes)) // see behind
	}
	return r.buf, r.bytes
}

// stage is the request's own room for a notice.
func (r *Request) stage() *[stagedBytes]byte { return (*[stagedBytes]byte)(unsafe.Pointer(&r.text)) }

// behind restores those bytes of the caller's buffer that a notice was written over, if the message that follows is
// too short to cover them. Only a message to this rank itself is announced although it is so short.
func (r *Request) behind(bytes int) {
	if !r.staged && bytes < noticeBytes {
		copy(unsafe.Slice((*byte)(r.buf), noticeBytes), r.stage()[:noticeBytes])
	}
}

// unannounced reports whether a receive that awaits a notice has got the message itself, and if so puts it into
// buf.
func (r *Request) unannounced(buf []byte, bytes int) bool {
	switch {
	case bytes == noticeBytes, r.staged && bytes > len(buf):
		return false
	case r.staged:
		copy(buf[:bytes], r.stage()[:])
	}
	return true
}

// leave turns the chain's request, which the calls have not completed, into one like others: in flight, unless it
// has failed. The chain gets another request.
func (b *brief) leave(c *Comm, tag int, asked bool) (*Request, error) {
	w, r := c.world, b.r
	b.aim(w, b.Start.Fn)
	r.comm, r.tag, r.from, r.fromBytes, r.cancelled, r.err = c, tag, nil, 0, false, nil
	r.follows = false
	r.result = Status{Source: r.peer, Tag: tag}
	if rc := int(int32(b.Start.R)); rc != 0 {
		err := r.failure(rc)
		r.release()
		return r, err
	}
	if !asked || !r.answered(int(int32(b.Poll.R))) {
		w.activate(r)
	}
	return r, nil
}
