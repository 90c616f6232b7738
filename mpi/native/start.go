package native

import (
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// How the library is called for a request: to start it, to ask for it, and when it is complete.

// post makes the call b, which starts r.
func (r *Request) post(b *clib.Block) error {
	w := r.comm.world
	w.lock()
	defer w.mu.Unlock()
	if r.comm.refuses() {
		return r.fail(0, ErrClosed, "")
	}
	w.chain.Start = *b
	return r.launch(0)
}

// launch makes the call in the world's chain, which starts r, and then asks up to tries
// times whether r is complete, all in one switch to C. If it is not, r is active. The
// world's lock is held.
func (r *Request) launch(tries uintptr) error {
	w := r.comm.world
	w.hold(r) // C keeps what the compiler no longer sees in use
	touch(r)
	w.aim(r, tries)
	w.switchToC(r)
	if rc := int(int32(w.chain.Start.R)); rc != 0 {
		err := r.failure(rc)
		r.release()
		return err
	}
	if tries <= 0 || !r.answered(int(int32(w.chain.Poll.R))) {
		w.activate(r)
	}
	return nil
}

// answered concludes r, which is not active, if the poll that returned rc found it over or failed, and reports
// whether that was so.
func (r *Request) answered(rc int) bool {
	if rc == 0 && r.flag == 0 {
		return false
	}
	done := true
	if r.awaits {
		done, rc = r.arrived(rc)
	}
	r.conclude(done, rc)
	return true
}

// conclude finishes r, which is not active, if it is done; else it makes r active.
func (r *Request) conclude(done bool, rc int) {
	if !done {
		r.comm.world.activate(r)
		return
	}
	r.state = complete
	r.finish(rc)
}

// aim points the chain's polling call at r.
func (w *World) aim(r *Request, tries uintptr) {
	p := &w.chain.Poll
	p.A[0] = uintptr(unsafe.Pointer(&r.request))
	p.A[1] = uintptr(unsafe.Pointer(&r.flag))
	p.A[2] = uintptr(unsafe.Pointer(&r.status))
	w.chain.Flag = uintptr(unsafe.Pointer(&r.flag))
	w.chain.Tries = tries
}

// switchToC makes the chain's calls.
func (w *World) switchToC(r *Request) {
	if r.bytes <= briefBytes {
		w.chain.CallBrief()
	} else {
		w.chain.Call()
	}
}

// poll reports whether r is no longer in flight, asking the library up to tries times
// if it was. The world's lock is held.
func (r *Request) poll(tries uintptr) bool {
	if r.state != active {
		return true
	}
	w := r.comm.world
	if r.op == opProbe {
		return r.pollProbe()
	}
	w.aim(r, tries)
	w.chain.Start.Fn = 0
	w.switchToC(r)
	rc := int(int32(w.chain.Poll.R))
	if rc == 0 && r.flag == 0 {
		return false
	}
	if r.awaits {
		var done bool
		if done, rc = r.arrived(rc); !done {
			return false
		}
	}
	w.deactivate(r)
	r.finish(rc)
	return true
}

// finish takes in the outcome of an operation that is complete.
func (r *Request) finish(rc int) {
	w := r.comm.world
	if rc != 0 {
		// Open MPI keeps a failed request; the others have set it to null.
		if w.load(&r.request) != w.abi.requestNull {
			clib.Call(w.fn.requestFree, uintptr(unsafe.Pointer(&r.request)))
		}
		r.err = r.failure(rc)
	}
	switch {
	case r.follows:
		r.settle()
	case r.op == opIrecv:
		r.result = w.readStatus(r)
		if r.cancelled && rc == 0 && w.wasCancelled(r) {
			r.result = Status{Source: r.peer, Tag: r.tag}
			r.err = r.takenBack()
		}
	default:
		r.result.Bytes = r.bytes
	}
	touch(r)
	w.forget(r)
	r.release()
}

// release lets go of what only the operation needed.
func (r *Request) release() {
	r.freeType()
	r.buf, r.from = nil, nil
}
