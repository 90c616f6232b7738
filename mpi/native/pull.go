package native

import (
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/procmem"
)

// A message that is announced to a rank which can read this process's memory is not sent. Its notice says where it
// lies; the receiver has the kernel copy as much of it as there is room for into the receiver's buffer, and
// acknowledges. That makes two short messages for a long one, as many as in the library's own protocol between
// ranks that read each other's memory.

// pulledBytes is the longest message that is pulled: reading keeps other goroutines from the library, and what a
// notice costs is nothing beside a longer message.
const pulledBytes = 1 << 20

// ReadFrom says, by rank in the world, whose memory this rank can read (processes: their process ids, 0 for other
// ranks) and which ranks can read this one's (readers). All ranks have called it before any rank sends to one that
// reads. It is of use where long messages are announced.
func (w *World) ReadFrom(processes []int, readers []bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes, w.readers = processes, readers
}

// readableBy reports whether a rank of the world pulls the messages that are announced to it. The lock is held.
func (w *World) readableBy(rank int) bool { return w.readers != nil && w.readers[rank] }

// pulls reports whether a message announced to a rank of the world is pulled. A message that is announced for
// another reason than its length is not: its sender need not wait for the receiver. The lock is held.
func (w *World) pulls(bytes, rank int) bool {
	return bytes > shortBytes && bytes <= pulledBytes && w.readableBy(rank)
}

// Pulled reports whether a rank of the world pulls long messages from this one.
func (w *World) Pulled(rank int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.announces && w.readableBy(rank)
}

// awaitPull starts r, of which the notice has been sent, as the receive of its acknowledgement.
func (r *Request) awaitPull(to, number int) error {
	w := r.comm.world
	b := &w.chain.Start
	b.Fn = w.fn.irecv
	b.A = [clib.MaxArgs]uintptr{uintptr(unsafe.Pointer(&r.text)), 0, uintptr(w.abi.types[Byte]), uintptr(to), uintptr(number),
		uintptr(w.acknowledgements.handle), uintptr(unsafe.Pointer(&r.request))}
	return r.launch(1)
}

// pull reads the message that n announces into the buffer of r, a receive, and acknowledges it. The lock is held.
func (r *Request) pull(n notice) {
	w := r.comm.world
	room := min(n.bytes, r.bytes)
	if err := procmem.ReadLong(w.processes[n.rank], unsafe.Slice((*byte)(r.buf), room), n.address); err != nil {
		r.err = r.fail(0, err, "the message could not be read")
	} else if room < n.bytes {
		r.err = r.fail(0, ErrTruncated, "")
	}
	if rc := w.acknowledge(n); rc != 0 && r.err == nil {
		r.err = r.failure(rc)
	}
}

// acknowledge tells the sender of a message that it has been pulled. It returns the library's code.
func (w *World) acknowledge(n notice) int {
	return w.notify(w.notification(), 0, uintptr(n.rank), n.number, w.acknowledgements.handle)
}
