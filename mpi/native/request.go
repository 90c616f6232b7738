package native

import (
	"math"
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

type opcode uint8

const (
	opIsend opcode = iota
	opIrecv
	opProbe
	opIdup
	opIbarrier
	opIbcast
	opIreduce
	opIallreduce
	opIallgather
	opIallgatherv
	opIgather
	opIgatherv
	opIscatter
	opIscatterv
	opIalltoall
	opIalltoallv
	opIreduceScatter
	opIreduceScatterBlock
	opIscan
	opIexscan
)

var opcodeNames = [...]string{"Isend", "Irecv", "Probe", "Idup", "Ibarrier", "Ibcast",
	"Ireduce", "Iallreduce", "Iallgather", "Iallgatherv", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Ialltoall",
	"Ialltoallv", "Ireduce_scatter", "Ireduce_scatter_block", "Iscan", "Iexscan"}

func (o opcode) String() string { return opcodeNames[o] }

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
	awaits        bool // a message, or the notice of one
	staged        bool // into text, the buffer being too short for a notice
	follows       bool // the notice is in, its message follows
	source, under int  // the rank and tag of the message that follows
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
// MPI would write to a stack that has moved. The world's lock is held, except for
// requests that nobody else knows.
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

// refuses: the world is closed, or closing: then only Close itself starts operations.
func (c *Comm) refuses() bool { return c.world.closed || c.world.closing && c != c.world.system }

// takenBack is the error of what was cancelled, by Close too.
func (r *Request) takenBack() error {
	if r.comm.world.closing {
		return r.fail(0, ErrClosed, "")
	}
	return r.fail(0, ErrCancelled, "")
}

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

// answered concludes r, which is not active, if a poll that returned rc said
// anything of it, and reports whether it did.
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

// conclude finishes r, which is not active, or makes it so.
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
	if r.large != 0 {
		clib.Call(r.comm.world.fn.typeFree, uintptr(unsafe.Pointer(&r.large)))
		r.large = 0
	}
	r.buf, r.from = nil, nil
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
	w := r.comm.world
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

// maxCount is the largest count of the classic calls.
const maxCount = math.MaxInt32

// transfer readies the chain to start a byte message: the classic call, its large-count
// form, or one element of a datatype made for the purpose. The message on the wire is
// the same in all three. The world's lock is held.
func (r *Request) transfer(classic, large uintptr) error {
	w := r.comm.world
	b := &w.chain.Start
	b.Fn = classic
	b.A[0] = uintptr(r.buf)
	b.A[1] = uintptr(r.bytes)
	b.A[2] = uintptr(w.abi.types[Byte])
	if r.bytes <= w.maxCount {
		return nil
	}
	if large != 0 {
		b.Fn = large
		return nil
	}
	if err := r.makeType(); err != nil {
		return err
	}
	b.A[1] = 1
	b.A[2] = uintptr(w.load(&r.large))
	return nil
}

// makeType makes r.large, a datatype of r.bytes contiguous bytes in blocks that an int
// can count.
func (r *Request) makeType() error {
	w := r.comm.world
	blockBytes := w.maxCount/2 + 1
	n := (r.bytes + blockBytes - 1) / blockBytes
	lengths, offsets := make([]int32, n), make([]int, n)
	for i := range n {
		offsets[i] = i * blockBytes
		lengths[i] = int32(min(blockBytes, r.bytes-offsets[i]))
	}
	rc := int(int32(clib.Call(w.fn.typeHindexed, uintptr(n), uintptr(unsafe.Pointer(&lengths[0])),
		uintptr(unsafe.Pointer(&offsets[0])), uintptr(w.abi.types[Byte]), uintptr(unsafe.Pointer(&r.large)))))
	if rc == 0 {
		rc = int(int32(clib.Call(w.fn.typeCommit, uintptr(unsafe.Pointer(&r.large)))))
	}
	if rc != 0 {
		return r.failure(rc)
	}
	return nil
}

// failure translates a library's error code. The world's lock is held.
func (r *Request) failure(code int) error {
	w := r.comm.world
	class, text := w.explain(code)
	sentinel := ErrFailed
	switch class {
	case w.abi.classTrunc:
		sentinel = ErrTruncated
	case w.abi.classRank:
		sentinel = ErrRank
	case w.abi.classTag:
		sentinel = ErrTag
	}
	return r.fail(code, sentinel, text)
}

func (r *Request) fail(code int, sentinel error, detail string) error {
	return &Error{Op: r.op.String(), Comm: r.comm.name, Rank: r.comm.rank, Peer: r.peer, Tag: r.tag,
		Library: r.comm.world.library, Code: code, Detail: detail, Err: sentinel}
}
