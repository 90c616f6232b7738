package native

import (
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Wildcards and the rank that is nobody, translated to the library's own values.
const (
	AnySource = -1
	ProcNull  = -2
	AnyTag    = -1
)

// Status describes a message that was received or probed.
type Status struct {
	Source, Tag int
	Bytes       int
}

type state uint8

const (
	idle state = iota
	active
	complete
)

// Request is one nonblocking operation. The zero value is ready to be started by a
// method of [Comm]; after it completed it may be started again, so hot paths keep and
// reuse requests and allocate nothing. Any goroutine may wait for, test or cancel it,
// but only one may start it. Starting a request moves it and its buffers to
// the heap and keeps both referenced until the library is done with them, whether or
// not the caller still holds the request.
type Request struct {
	// Written by C.
	request uintptr
	made    uintptr // the communicator that Idup makes
	large   uintptr // datatype of a message of more than 2³¹-1 bytes
	status  [8]uint64
	flag    int32

	op        opcode
	state     state
	cancelled bool
	peer, tag int
	comm      *Comm
	buf, from unsafe.Pointer // buffers that C holds
	bytes     int
	fromBytes int
	counts    []int32 // counts and displacements of the v collectives

	// Of receives where long messages are announced.
	awaits        bool // awaits a message, or the notice of one
	staged        bool // receives into text, since the buffer is too short for a notice
	follows       bool // the notice is in, its message follows
	source, under int  // the rank and tag of the message that follows
	length        int  // and its length, which may be more than bytes
	text          [4]uint64
	spill         []byte // for a message longer than the user's buffer
	user          unsafe.Pointer
	room          int

	result Status
	err    error

	next, prev *Request // the world's active requests
}

// begin readies r; it is not yet active. Storing the buffers in r is what makes them
// escape: an address converted to uintptr hides the buffer from escape analysis, and
// MPI would write to a stack that has moved. The world's lock is held.
func (r *Request) begin(c *Comm, op opcode, buf unsafe.Pointer, bytes, peer, tag int) error {
	if r.state == active {
		return &Error{Op: op.String(), Comm: c.name, Rank: c.rank, Peer: peer, Tag: tag, Library: c.world.library, Err: ErrBusy}
	}
	r.comm, r.op, r.buf, r.from, r.bytes, r.peer, r.tag = c, op, buf, nil, bytes, peer, tag
	r.cancelled, r.flag, r.err, r.fromBytes = false, 0, nil, 0
	r.awaits, r.staged, r.follows = false, false, false
	r.result = Status{Source: peer, Tag: tag}
	if c.refuses() {
		return r.fail(0, ErrClosed, "")
	}
	return nil
}

// refuses reports whether no operation may start: the world is closed, or it is closing, and c is not the
// communicator of Close itself and of the calls of CreateGroup that Close waits for.
func (c *Comm) refuses() bool { return c.world.closed || c.world.closing && c != c.world.system }

// takenBack is the error of an operation that was cancelled, by Cancel or by Close.
func (r *Request) takenBack() error {
	if r.comm.world.closing {
		return r.fail(0, ErrClosed, "")
	}
	return r.fail(0, ErrCancelled, "")
}

// Test reports whether the operation has completed, and its error if so. Progress of
// all operations is made meanwhile.
func (r *Request) Test() (bool, error) {
	if r.comm == nil {
		return true, nil
	}
	w := r.comm.world
	w.lock()
	done := r.poll(1)
	if !done && w.announces {
		w.advance()
		done = r.state != active
	}
	err := r.err
	w.mu.Unlock()
	if !done {
		return false, nil
	}
	return true, err
}

// Status is the result of a completed receive or probe. For a receive that matched a
// wildcard it tells who sent; Bytes is the length that arrived.
func (r *Request) Status() Status { return r.result }

// Err is the error of a completed operation.
func (r *Request) Err() error { return r.err }

// InFlight reports whether the library still holds the buffers.
func (r *Request) InFlight() bool {
	if r.comm == nil {
		return false
	}
	w := r.comm.world
	w.lock()
	defer w.mu.Unlock()
	return r.state == active
}

// Cancel asks for a receive or probe to end. It must still be waited for: if it had
// matched a message it completes as if nothing had happened, else with [ErrCancelled].
// MPI cannot take back a send or a collective: the error then wraps [ErrUnsupported]
// and the operation goes on.
func (r *Request) Cancel() error {
	if r.comm == nil {
		return nil
	}
	return r.comm.world.Cancel(r)
}

// Cancel is r's Cancel for callers that do not know whether r has begun, since another goroutine may be beginning
// it.
func (w *World) Cancel(r *Request) error {
	w.lock()
	defer w.mu.Unlock()
	if r.state != active || r.cancelled {
		return nil
	}
	switch r.op {
	case opProbe:
		w.deactivate(r)
		r.err = r.takenBack()
		w.wakeParked(r)
	case opIrecv:
		if r.follows {
			return nil // it has been matched
		}
		if rc := int(int32(clib.Call(w.fn.cancel, uintptr(unsafe.Pointer(&r.request))))); rc != 0 {
			return r.failure(rc)
		}
		r.cancelled = true
	default:
		return r.fail(0, ErrUnsupported, "only receives and probes can be cancelled")
	}
	return nil
}
