package native

import (
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// briefBytes is the largest message whose copying, some 10 µs, is short enough for the scheduler
// not to know of it: no goroutine needs the processor sooner, and a garbage collection can wait.
const briefBytes = 128 << 10

// brief is how blocking calls move short messages: one request that they use in turn,
// and for each direction a chain of calls made ready, in which only the message's own
// arguments change. With a message of 8 bytes every nanosecond between the two C calls counts.
type brief struct {
	r          *Request // not in flight; nil: the last one is
	send, recv clib.Chain
}

// briefly reports whether a message may go this way.
func (w *World) briefly(bytes int) bool {
	return bytes <= briefBytes && !w.closing && (!w.forgets || bytes < forgetBytes)
}

// briefRequest returns the request at which both chains are aimed, with what
// completing it needs. The lock is held.
func (w *World) briefRequest(op opcode, buf []byte, peer int) *Request {
	r := w.brief.r
	if r == nil {
		r = w.aimBrief()
	}
	r.buf, r.bytes, r.op, r.peer, r.flag = unsafe.Pointer(unsafe.SliceData(buf)), len(buf), op, peer, 0
	r.awaits, r.staged = false, false
	touch(r)
	return r
}

func (w *World) aimBrief() *Request {
	r := w.request()
	w.brief.r = r
	w.brief.send.Start.Fn = w.fn.isend
	w.brief.recv.Start.Fn = w.fn.irecv
	for _, ch := range []*clib.Chain{&w.brief.send, &w.brief.recv} {
		ch.Start.A[2] = uintptr(w.abi.types[Byte])
		ch.Start.A[6] = uintptr(unsafe.Pointer(&r.request))
		ch.Poll.Fn = w.fn.test
		ch.Poll.A[0] = uintptr(unsafe.Pointer(&r.request))
		ch.Poll.A[1] = uintptr(unsafe.Pointer(&r.flag))
		ch.Poll.A[2] = uintptr(unsafe.Pointer(&r.status))
		ch.Flag = uintptr(unsafe.Pointer(&r.flag))
	}
	return r
}

// sendBrief sends, and reports whether that is done already. If not, r has been
// started or has failed as by [Comm.Isend]. The lock is held.
func (c *Comm) sendBrief(buf []byte, dst, tag int) (r *Request, done bool, err error) {
	w := c.world
	r = w.briefRequest(opIsend, buf, dst)
	ch := &w.brief.send
	ch.Start.A[0] = uintptr(r.buf)
	ch.Start.A[1] = uintptr(len(buf))
	ch.Start.A[3] = c.peer(dst)
	ch.Start.A[4] = uintptr(tag)
	ch.Start.A[5] = uintptr(c.handle)
	asked := w.abi.requestEmpty == 0
	if ch.Tries = 1; !asked {
		ch.Tries = 0
	}
	ch.CallBrief()
	if int32(ch.Start.R) == 0 && (asked && r.flag != 0 && int32(ch.Poll.R) == 0 || !asked && handle(r.request) == w.abi.requestEmpty) {
		touch(r)
		r.buf = nil
		return r, true, nil
	}
	if err = w.leaveBrief(c, r, ch, tag, asked); err == nil && !asked {
		r.poll(1)
	}
	return r, false, err
}

// recvBrief receives, asking up to tries times whether the message is there, and
// otherwise is as sendBrief.
func (c *Comm) recvBrief(buf []byte, src, tag int, tries uintptr) (r *Request, s Status, done bool, err error) {
	w := c.world
	r = w.briefRequest(opIrecv, buf, src)
	ch := &w.brief.recv
	ch.Start.A[0] = uintptr(r.buf)
	ch.Start.A[1] = uintptr(len(buf))
	if r.awaits = w.announces && src != ProcNull; r.awaits {
		if r.staged = len(buf) < stagedBytes; r.staged {
			ch.Start.A[0] = uintptr(unsafe.Pointer(&r.text))
			ch.Start.A[1] = stagedBytes
		}
	}
	ch.Start.A[3] = c.peer(src)
	ch.Start.A[4] = c.tag(tag)
	ch.Start.A[5] = uintptr(c.handle)
	ch.Tries = tries
	ch.CallBrief()
	if int32(ch.Start.R) == 0 && r.flag != 0 && int32(ch.Poll.R) == 0 {
		s = w.readStatus(r)
		switch {
		case !r.awaits, !r.staged && s.Bytes != noticeBytes:
			done = true
		case r.staged && s.Bytes <= len(buf) && s.Bytes != noticeBytes:
			copy(buf[:s.Bytes], (*[32]byte)(unsafe.Pointer(&r.text))[:])
			done = true
		}
		if done {
			touch(r)
			r.buf, r.awaits = nil, false
			return r, s, true, nil
		}
	}
	return r, s, false, w.leaveBrief(c, r, ch, tag, true)
}

// leaveBrief makes of r, whose chain of calls has not completed it, a request
// like others.
func (w *World) leaveBrief(c *Comm, r *Request, ch *clib.Chain, tag int, asked bool) error {
	w.brief.r = nil
	r.comm, r.tag, r.from, r.fromBytes, r.cancelled, r.err = c, tag, nil, 0, false, nil
	r.follows = false
	r.result = Status{Source: r.peer, Tag: tag}
	if rc := int(int32(ch.Start.R)); rc != 0 {
		err := r.failure(rc)
		r.release()
		return err
	}
	if !asked || !r.answered(int(int32(ch.Poll.R))) {
		w.activate(r)
	}
	return nil
}
