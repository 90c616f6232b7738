package native

import (
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Open MPI's own transports within a host and over TCP (its BTLs under the PML ob1) move
// long messages by RDMA-like get and put, and then do not look at how long the receive
// buffer is: a message that is too long is reported as truncated after all of it has been
// written, over whatever lies behind the buffer (4.1.4: 199,999 bytes of a message of
// 200,000 received into one). Only short messages, which are copied, are safe.
//
// So with those transports a long message is announced: a notice of a few bytes is sent in its place, with the same
// communicator and tag, and is matched as the message would have been. The message itself follows on a communicator
// of its own, under a tag that the notice names, and is received there with exactly its length: into the user's
// buffer or, if that is too short, into memory made for it, whose beginning is then copied. That costs one more
// short message, except between ranks that can read each other's memory (pull.go). UCX and libfabric, by which Open
// MPI drives InfiniBand and Omni-Path, check lengths themselves and need none of this.

const (
	// noticeBytes is the length of a notice. It tells a notice from a message, so a message of just this length is
	// announced, too.
	noticeBytes = 29
	// stagedBytes is the least room for a message or notice; shorter buffers are staged.
	stagedBytes = 32
	// shortBytes is the longest message that is not announced: less, with its header, than the eager limit of
	// transports between ranks, which is 4 KiB or more.
	shortBytes = 3 << 10
)

// notice says which message follows.
type notice struct {
	source, tag int // of the message, in the communicator of the notice
	bytes       int
	rank        int     // the sender's, in the world
	number      int     // tag under which it follows
	address     uintptr // of the message in the sender's memory, if it is pulled from there, else 0; see pull.go
	message     []byte  // the message itself, if it was taken without having been announced; see take
}

// notification is a notice, or an acknowledgement, on its way. Written by C.
type notification struct {
	text    [4]uint64
	status  [8]uint64
	request uintptr
	flag    int32
}

// readNotice reads the notice that a receive has got, with its status.
func readNotice(text *[4]uint64, s Status) notice {
	b := (*[32]byte)(unsafe.Pointer(text))
	return notice{
		source: s.Source, tag: s.Tag, bytes: int(binary.NativeEndian.Uint64(b[:])),
		rank: int(binary.NativeEndian.Uint32(b[8:])), number: int(binary.NativeEndian.Uint32(b[12:])),
		address: uintptr(binary.NativeEndian.Uint64(b[16:])),
	}
}

// announcing reports whether long messages must be announced: under Open MPI, by whichever binary interface, unless
// its messages are known to be moved by something else than ob1. All ranks find the same.
func (w *World) announcing() bool {
	if w.lib.Family != OpenMPI && w.lib.Name != OpenMPI.String() {
		return false
	}
	module, dladdr := clib.Global("mca_pml"), clib.Global("dladdr")
	if module == 0 || dladdr == 0 {
		return true
	}
	info := new([4]uintptr) // file name, base, symbol name, address
	function := *(*uintptr)(clib.Pointer(module))
	if int32(clib.Call(dladdr, function, uintptr(unsafe.Pointer(info)))) == 0 {
		return true
	}
	file := clib.String(info[0], 4096)
	return !strings.Contains(file, "mca_pml_") || strings.Contains(file, "mca_pml_ob1")
}

// announced reports whether a message to rank dst must be announced. The world's lock is held.
func (c *Comm) announced(bytes, dst int) bool {
	w := c.world
	if !w.announces || dst < 0 {
		return false
	}
	// All messages to this rank itself are announced: Open MPI 4.1.4 does not report that such a message was too
	// long for a receive that had been posted before it.
	return bytes > shortBytes || bytes == noticeBytes || c.worldRank(dst) == w.comm.rank
}

func (c *Comm) worldRank(r int) int {
	if c.ranks == nil {
		return r
	}
	return c.ranks[r]
}

// announce sends the notice of r, a send that has begun, and starts r: as the send of the message that follows or,
// if the message is pulled, as the receive of the acknowledgement.
func (c *Comm) announce(r *Request, dst, tag int) error {
	w := c.world
	n := w.notification()
	to := c.worldRank(dst)
	pulled, at := w.pulls(r.bytes, to), uintptr(0)
	if pulled {
		at = uintptr(r.buf)
	}
	number := w.announcements % (w.caps.MaxTag + 1)
	w.announcements++
	b := (*[32]byte)(unsafe.Pointer(&n.text))
	binary.NativeEndian.PutUint64(b[:], uint64(r.bytes))
	binary.NativeEndian.PutUint32(b[8:], uint32(w.comm.rank))
	binary.NativeEndian.PutUint32(b[12:], uint32(number))
	binary.NativeEndian.PutUint64(b[16:], uint64(at))
	if rc := w.notify(n, noticeBytes, c.peer(dst), tag, c.handle); rc != 0 {
		err := r.failure(rc)
		r.release()
		return err
	}
	if pulled {
		return r.awaitPull(to, number)
	}
	if err := r.transfer(w.fn.isend, w.fn.isendC); err != nil {
		return err
	}
	start := &w.chain.Start
	start.A[3] = uintptr(to)
	start.A[4] = uintptr(number)
	start.A[5] = uintptr(w.long.handle)
	start.A[6] = uintptr(unsafe.Pointer(&r.request))
	return r.launch(1)
}

// notification returns a notification that is not in use.
func (w *World) notification() *notification {
	w.follow()
	k := len(w.notices)
	if k == 0 {
		return new(notification)
	}
	n := w.notices[k-1]
	w.notices = w.notices[:k-1]
	return n
}

// notify sends the first so many bytes of a notification, and keeps it until they have left. It returns the
// library's code.
func (w *World) notify(n *notification, bytes int, peer uintptr, tag int, comm handle) int {
	start := &w.chain.Start
	start.Fn = w.fn.isend
	start.A = [clib.MaxArgs]uintptr{uintptr(unsafe.Pointer(&n.text)), uintptr(bytes), uintptr(w.abi.types[Byte]), peer,
		uintptr(tag), uintptr(comm), uintptr(unsafe.Pointer(&n.request))}
	w.chain.Tries = 0
	w.chain.CallBrief()
	rc := int(int32(start.R))
	if rc != 0 || w.load(&n.request) == w.abi.requestEmpty {
		w.notices = append(w.notices, n)
	} else {
		w.notifying = append(w.notifying, n)
	}
	return rc
}

// follow looks after notices that were not sent at once.
func (w *World) follow() {
	if len(w.notifying) == 0 {
		return
	}
	w.notifying = slices.DeleteFunc(w.notifying, func(n *notification) bool {
		n.flag = 0
		rc := clib.Call(w.fn.test, uintptr(unsafe.Pointer(&n.request)), uintptr(unsafe.Pointer(&n.flag)), uintptr(unsafe.Pointer(&n.status)))
		if int32(rc) == 0 && n.flag == 0 {
			return false
		}
		w.notices = append(w.notices, n)
		return true
	})
}

// arrived takes in what a receive that awaits a message, or a notice, has got, with the
// library's code. It reports whether r is complete, and with which code; if not, r
// receives the message that was announced.
func (r *Request) arrived(rc int) (done bool, code int) {
	w := r.comm.world
	r.awaits = false
	if r.cancelled && rc == 0 && w.wasCancelled(r) {
		return true, rc
	}
	text := r.buf
	if r.staged {
		text = unsafe.Pointer(&r.text)
	}
	s := w.readStatus(r)
	if rc == 0 && s.Bytes == noticeBytes {
		var n [4]uint64
		copy((*[32]byte)(unsafe.Pointer(&n))[:noticeBytes], unsafe.Slice((*byte)(text), noticeBytes))
		said := readNotice(&n, s)
		r.behind(said.bytes)
		return r.receive(said)
	}
	if r.staged {
		k := min(s.Bytes, r.bytes)
		copy(unsafe.Slice((*byte)(r.buf), k), unsafe.Slice((*byte)(text), k))
		if rc == 0 && s.Bytes > r.bytes {
			r.err = r.fail(0, ErrTruncated, "")
		}
	}
	return true, rc
}

// receive makes r receive the message that n announces, or holds. The lock is held.
func (r *Request) receive(n notice) (done bool, code int) {
	w := r.comm.world
	r.awaits, r.follows, r.from = false, true, nil
	r.source, r.under, r.length = n.source, n.tag, n.bytes
	switch {
	case n.message != nil:
		if copy(unsafe.Slice((*byte)(r.buf), r.bytes), n.message) < n.bytes {
			r.err = r.fail(0, ErrTruncated, "")
		}
		return true, 0
	case n.address != 0:
		r.pull(n)
		return true, 0
	}
	if n.bytes > r.bytes {
		r.spill = make([]byte, n.bytes)
		r.user, r.room = r.buf, r.bytes
		r.buf = unsafe.Pointer(unsafe.SliceData(r.spill))
	}
	r.bytes = n.bytes
	r.freeType() // of the buffer that the notice came into
	if err := r.transfer(w.fn.irecv, w.fn.irecvC); err != nil {
		r.err = err
		return true, 0
	}
	b := &w.chain.Start
	b.A[3] = uintptr(n.rank)
	b.A[4] = uintptr(n.number)
	b.A[5] = uintptr(w.long.handle)
	b.A[6] = uintptr(unsafe.Pointer(&r.request))
	r.flag = 0
	w.hold(r)
	w.aim(r, 1)
	w.switchToC(r)
	if rc := int(int32(b.R)); rc != 0 {
		return true, rc
	}
	rc := int(int32(w.chain.Poll.R))
	return rc != 0 || r.flag != 0, rc
}

// settle gives a receive of an announced message its result.
func (r *Request) settle() {
	r.result = Status{Source: r.source, Tag: r.under, Bytes: r.length}
	if r.spill != nil {
		copy(unsafe.Slice((*byte)(r.user), r.room), r.spill)
		if r.err == nil {
			r.err = r.fail(0, ErrTruncated, "")
		}
		r.spill, r.user = nil, nil
	}
}

// advance looks after receives for which nobody may be waiting here: the sender of a message that is announced to
// one of them does wait. The lock is held.
func (w *World) advance() {
	w.follow()
	for r := w.active; r != nil; {
		next := r.next
		if r.awaits {
			r.poll(1)
		}
		r = next
	}
}

// metAt is the index in c.met, the messages that probes have met, of the first that fits, or -1.
func (c *Comm) metAt(src, tag int) int {
	return slices.IndexFunc(c.met, func(n notice) bool {
		return (src == AnySource || src == n.source) && (tag == AnyTag || tag == n.tag)
	})
}

// meets completes r, a probe, which has met the message of n.
func (r *Request) meets(n notice) bool {
	r.comm.world.deactivate(r)
	r.result = Status{Source: n.source, Tag: n.tag, Bytes: n.bytes}
	return true
}

// meet takes the notice that r, a probe, has found with status s, and before it all earlier messages of that
// source, into c.met. So what has been met is always older than what the library still has from its source, and no
// message overtakes another. It returns the library's code. The lock is held.
func (r *Request) meet(s Status) int {
	c := r.comm
	for {
		if rc := r.look(s.Source, AnyTag); rc != 0 {
			return rc
		}
		n, rc := c.take(c.world.readStatus(r))
		if rc != 0 {
			return rc
		}
		c.met = append(c.met, n)
		if n.tag == s.Tag {
			return 0
		}
	}
}

// take receives the next message of a source, or its notice, which the library has found and described by s. The
// lock is held.
func (c *Comm) take(s Status) (notice, int) {
	w := c.world
	n := new(notification)
	var message []byte
	at := unsafe.Pointer(&n.text)
	if s.Bytes != noticeBytes {
		message = make([]byte, s.Bytes)
		at = unsafe.Pointer(unsafe.SliceData(message))
	}
	start := clib.Block{Fn: w.fn.irecv, A: [clib.MaxArgs]uintptr{uintptr(at), uintptr(s.Bytes), uintptr(w.abi.types[Byte]),
		c.peer(s.Source), c.tag(s.Tag), uintptr(c.handle), uintptr(unsafe.Pointer(&n.request))}}
	rc := int(int32(start.Call()))
	for rc == 0 && n.flag == 0 { // it is here: a probe has seen it
		rc = int(int32(clib.Call(w.fn.test, uintptr(unsafe.Pointer(&n.request)), uintptr(unsafe.Pointer(&n.flag)), uintptr(unsafe.Pointer(&n.status)))))
	}
	runtime.KeepAlive(n)
	if message != nil {
		return notice{source: s.Source, tag: s.Tag, bytes: s.Bytes, message: message}, rc
	}
	return readNotice(&n.text, s), rc
}
