package native

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Comm is a communicator of the library. Any goroutine may use it.
type Comm struct {
	world      *World
	handle     handle
	name       string
	rank, size int
	ranks      []int    // in the world; nil: the same
	met        []notice // messages that probes have met, in order, and that have not been received yet
	freed      bool
}

// Rank is this process's rank in the communicator.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.size }

// Name is the name the communicator was made with, for messages.
func (c *Comm) Name() string { return c.name }

func (c *Comm) check(op opcode, peer, tag, leastPeer, leastTag int) error {
	if c.valid(peer, tag, leastPeer, leastTag) {
		return nil
	}
	return c.mistake(op, peer, tag, leastPeer, leastTag)
}

// valid reports whether there is such a rank and tag, neither less than the least.
func (c *Comm) valid(peer, tag, leastPeer, leastTag int) bool {
	return (uint(peer-leastPeer) < uint(c.size-leastPeer) || peer == ProcNull) && tag >= leastTag && tag <= c.world.caps.MaxTag
}

// mistake says what is not valid.
func (c *Comm) mistake(op opcode, peer, tag, leastPeer, leastTag int) error {
	if c.valid(peer, leastTag, leastPeer, leastTag) {
		return &Error{Op: op.String(), Comm: c.name, Rank: c.rank, Peer: peer, Tag: AnyTag, Library: c.world.library,
			Err: ErrTag, Detail: fmt.Sprintf("tag %d is not in %d..%d", tag, leastTag, c.world.caps.MaxTag)}
	}
	return &Error{Op: op.String(), Comm: c.name, Rank: c.rank, Peer: AnySource, Tag: tag, Library: c.world.library,
		Err: ErrRank, Detail: fmt.Sprintf("rank %d is not in 0..%d", peer, c.size-1)}
}

// peer and tag in the library's values.
func (c *Comm) peer(p int) uintptr {
	switch p {
	case AnySource:
		return uintptr(c.world.abi.anySource)
	case ProcNull:
		return uintptr(c.world.abi.procNull)
	}
	return uintptr(p)
}

func (c *Comm) tag(t int) uintptr {
	if t == AnyTag {
		return uintptr(c.world.abi.anyTag)
	}
	return uintptr(t)
}

// Isend starts sending buf to rank dst. buf must not change until r is complete. Isend never blocks; if it returns
// an error, for its arguments or because the library refuses, r was not started. MPICH completes a send to this
// rank itself only when the receive has been posted, whatever its length.
func (c *Comm) Isend(r *Request, buf []byte, dst, tag int) error {
	if err := c.check(opIsend, dst, tag, 0, 0); err != nil {
		return err
	}
	w := c.world
	w.lock()
	defer w.mu.Unlock()
	return c.isend(r, buf, dst, tag)
}

// isend is Isend with checked arguments and the world's lock held. The library is asked
// at once whether the send is complete, as short ones mostly are.
func (c *Comm) isend(r *Request, buf []byte, dst, tag int) error {
	w := c.world
	if err := r.begin(c, opIsend, unsafe.Pointer(unsafe.SliceData(buf)), len(buf), dst, tag); err != nil {
		return err
	}
	if c.announced(len(buf), dst) {
		return c.announce(r, dst, tag)
	}
	if err := r.transfer(w.fn.isend, w.fn.isendC); err != nil {
		return err
	}
	b := &w.chain.Start
	b.A[3] = c.peer(dst)
	b.A[4] = uintptr(tag)
	b.A[5] = uintptr(c.handle)
	b.A[6] = uintptr(unsafe.Pointer(&r.request))
	return r.launch(1)
}

// Irecv starts receiving into buf from rank src, or [AnySource], with the given tag, or
// [AnyTag]. buf belongs to the library until r is complete. A longer message is an
// error that wraps [ErrTruncated]; a shorter one is not, its length is in the status.
func (c *Comm) Irecv(r *Request, buf []byte, src, tag int) error {
	if err := c.check(opIrecv, src, tag, AnySource, AnyTag); err != nil {
		return err
	}
	w := c.world
	w.lock()
	defer w.mu.Unlock()
	return c.irecv(r, buf, src, tag, 0)
}

// irecv is Irecv with checked arguments and the world's lock held; the library is asked
// up to tries times whether the message is there.
func (c *Comm) irecv(r *Request, buf []byte, src, tag int, tries uintptr) error {
	w := c.world
	if err := r.begin(c, opIrecv, unsafe.Pointer(unsafe.SliceData(buf)), len(buf), src, tag); err != nil {
		return err
	}
	if w.announces && src != ProcNull {
		if i := c.metAt(src, tag); i >= 0 {
			n := c.met[i]
			c.met = slices.Delete(c.met, i, i+1)
			r.conclude(r.receive(n))
			return nil
		}
		r.awaitNotice(c)
	}
	if err := r.transfer(w.fn.irecv, w.fn.irecvC); err != nil {
		return err
	}
	b := &w.chain.Start
	if r.staged {
		b.A[0], b.A[1] = uintptr(unsafe.Pointer(&r.text)), stagedBytes
	}
	b.A[3] = c.peer(src)
	b.A[4] = c.tag(tag)
	b.A[5] = uintptr(c.handle)
	b.A[6] = uintptr(unsafe.Pointer(&r.request))
	return r.launch(tries)
}

// Probe starts looking for a message without receiving it: r completes when one that
// matches has arrived, and its status tells source, tag and length. Another receive
// may take the message before the caller does.
func (c *Comm) Probe(r *Request, src, tag int) error {
	if err := c.check(opProbe, src, tag, AnySource, AnyTag); err != nil {
		return err
	}
	w := c.world
	w.lock()
	defer w.mu.Unlock()
	if err := r.begin(c, opProbe, nil, 0, src, tag); err != nil {
		return err
	}
	w.activate(r)
	r.poll(1)
	return nil
}

func (r *Request) pollProbe() bool {
	c := r.comm
	w := c.world
	if w.announces {
		if i := c.metAt(r.peer, r.tag); i >= 0 {
			return r.meets(c.met[i])
		}
	}
	rc := r.look(r.peer, r.tag)
	if rc == 0 && r.flag == 0 {
		return false
	}
	if rc == 0 {
		r.result = w.readStatus(r)
		if w.announces && r.result.Bytes == noticeBytes {
			if rc = r.meet(r.result); rc == 0 {
				return r.meets(c.met[len(c.met)-1])
			}
		}
	}
	w.deactivate(r)
	if rc != 0 {
		r.err = r.failure(rc)
	}
	return true
}

// look asks the library once for a message; r's flag and status tell. It returns the library's code.
func (r *Request) look(src, tag int) int {
	c := r.comm
	b := clib.Block{Fn: c.world.fn.iprobe}
	b.A[0] = c.peer(src)
	b.A[1] = c.tag(tag)
	b.A[2] = uintptr(c.handle)
	b.A[3] = uintptr(unsafe.Pointer(&r.flag))
	b.A[4] = uintptr(unsafe.Pointer(&r.status))
	return int(int32(b.Call()))
}

// Dup makes a communicator of the same ranks whose messages never match this one's. All
// ranks call it. It waits, polling; MPI cannot take it back, so when ctx ends the
// communicator is unusable for collectives and the error wraps [ErrBusy].
func (c *Comm) Dup(ctx context.Context, name string) (*Comm, error) {
	w := c.world
	r := new(Request)
	w.lock()
	err := r.begin(c, opIdup, nil, 0, AnySource, AnyTag)
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	b := clib.Block{Fn: w.fn.commIdup}
	b.A[0] = uintptr(c.handle)
	b.A[1] = uintptr(unsafe.Pointer(&r.made))
	b.A[2] = uintptr(unsafe.Pointer(&r.request))
	if err := r.post(&b); err != nil {
		return nil, err
	}
	if err := w.finishCollective(ctx, r); err != nil {
		return nil, err
	}
	d, err := w.newComm(w.load(&r.made), name)
	if err == nil {
		d.ranks = c.ranks
	}
	return d, err
}

// finishCollective waits for a collective that cannot be cancelled.
func (w *World) finishCollective(ctx context.Context, r *Request) error {
	if _, err := w.Wait(ctx, r); err != nil {
		if r.InFlight() {
			return r.fail(0, fmt.Errorf("%w: %w", ErrBusy, err), "a collective cannot be taken back")
		}
		return err
	}
	return nil
}

// Free gives the communicator back. All of its ranks call it; nothing may be in flight.
func (c *Comm) Free() error {
	w := c.world
	w.lock()
	defer w.mu.Unlock()
	if c.freed || w.closed || c.handle == w.abi.commWorld {
		return nil
	}
	c.freed = true
	h := new(uintptr)
	w.store(h, c.handle)
	if rc := int(int32(clib.Call(w.fn.commFree, uintptr(unsafe.Pointer(h))))); rc != 0 {
		_, text := w.explain(rc)
		return &Error{Op: "Free", Comm: c.name, Rank: c.rank, Peer: AnySource, Tag: AnyTag, Library: w.library, Code: rc, Detail: text, Err: ErrFailed}
	}
	return nil
}

// newComm wraps a handle: errors are returned, not fatal, and rank and size are known.
func (w *World) newComm(h handle, name string) (*Comm, error) {
	c := &Comm{world: w, handle: h, name: name}
	out := &[2]int32{}
	w.lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, &Error{Op: "Comm_rank", Comm: name, Peer: AnySource, Tag: AnyTag, Library: w.library, Err: ErrClosed}
	}
	rc := clib.Call(w.fn.commSetErrhandler, uintptr(h), uintptr(w.abi.errorsReturn))
	if int32(rc) == 0 {
		rc = clib.Call(w.fn.commRank, uintptr(h), uintptr(unsafe.Pointer(&out[0])))
	}
	if int32(rc) == 0 {
		rc = clib.Call(w.fn.commSize, uintptr(h), uintptr(unsafe.Pointer(&out[1])))
	}
	if code := int(int32(rc)); code != 0 {
		_, text := w.explain(code)
		return nil, &Error{Op: "Comm_rank", Comm: name, Peer: AnySource, Tag: AnyTag, Library: w.library, Code: code, Detail: text, Err: ErrFailed}
	}
	c.rank, c.size = int(out[0]), int(out[1])
	return c, nil
}
