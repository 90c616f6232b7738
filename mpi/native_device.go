package mpi

import (
	"context"
	"log/slog"
	"sync"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// nativeDevice is the device over the system's MPI library: the library
// matches and moves messages, and this adapter keeps the books that a Comm expects. The ranks of a host share
// memory without the library's help (hostMemory).
//
// What MPI cannot do, this device cannot either. It never names a lost rank: the
// launcher ends the job when a process dies. It cannot take back a send. MPICH's family completes a send to
// oneself only when it is received, however short. Revoke is known to this
// rank only. A waiting rank wakes up now and then to look. Tags end where the library's do
// (tags). Only Open MPI tells the length of a truncated message; with other libraries Status.Bytes is −1. The beginning of
// such a message is delivered only by Open MPI where UCX does not move the message; else the buffer is as it was.
type nativeDevice struct {
	lib  *native.World
	name string // "openmpi 4.1.4"
	from string // where it was found, and why that one
	log  *slog.Logger

	tags nativeTags
	host *hostMemory

	// The world's communicators, made before the world is.
	user, shadow *native.Comm

	mu      sync.Mutex
	all     []*op
	free    []*op
	context uint32             // next free context id
	comms   map[*Comm]struct{} // in use; nil when the library has ended
	closing chan struct{}      // ends the keeper
	stopped sync.WaitGroup
}

func (d *nativeDevice) caps() DeviceCaps {
	c := d.lib.Caps()
	return DeviceCaps{Name: "mpi", NamesLost: c.NamesLost, CancelsSends: c.CancelsSends, SleepsInKernel: c.SleepsInKernel}
}

func (d *nativeDevice) transport(int) (name, reason string) { return "mpi", d.name + " at " + d.from }

func (d *nativeDevice) path(worldRank int) string {
	if d.lib.Pulled(worldRank) {
		return "process_vm_readv of the receiver up to 1 MiB, else the library's own way"
	}
	return "" // the library's own affair
}

// comm is the library's communicator of c, or why nothing may be started on it.
func (d *nativeDevice) comm(c *Comm) (*native.Comm, error) {
	switch {
	case c.freed.Load():
		return nil, errFreed
	case c.revoked.Load():
		return nil, ErrRevoked
	}
	return c.native.(*native.Comm), nil
}

func (d *nativeDevice) send(ctx context.Context, c *Comm, buf []byte, dst, tag int) error {
	n, err := d.comm(c)
	if err == nil {
		if err = n.Send(ctx, buf, dst, d.tags.out(tag)); err == nil {
			return nil
		}
		if r := inFlight(err); r != nil {
			var over bool
			if _, over, err = d.grace(ctx, r); !over {
				return d.leave(&op{comm: c, env: envelope{source: AnySource, tag: int32(tag)}, peer: int32(dst)}, r, err)
			}
			if err == nil { // sent, within the grace
				return nil
			}
		}
	}
	return d.sendError(c, dst, tag, err)
}

func (d *nativeDevice) recv(ctx context.Context, c *Comm, buf []byte, src, tag int) (Status, error) {
	n, err := d.comm(c)
	if err != nil {
		return Status{}, d.recvError(c, src, tag, &Status{}, 0, err)
	}
	s, err := n.Recv(ctx, buf, src, d.tags.out(tag))
	if err == nil {
		return d.status(s), nil
	}
	if r := inFlight(err); r != nil {
		var over bool
		if s, over, err = d.grace(ctx, r); !over {
			return Status{}, d.leave(&op{kind: opRecv, comm: c, env: envelope{source: int32(src), tag: int32(tag)}, buf: buf}, r, err)
		}
		if err == nil { // received, within the grace
			return d.status(s), nil
		}
	}
	status := d.status(s)
	err = d.recvError(c, src, tag, &status, len(buf), err)
	return status, err
}

func (d *nativeDevice) sendrecv(ctx context.Context, c *Comm, send []byte, dst, sendTag int, recv []byte, src, recvTag int) (Status, error) {
	return bothWays(ctx, c, send, dst, sendTag, recv, src, recvTag)
}

func (d *nativeDevice) isend(c *Comm, buf []byte, dst, tag int) Request {
	n, err := d.comm(c)
	if err != nil {
		return failed(Status{}, d.sendError(c, dst, tag, err))
	}
	o, r := d.get(opSend, c)
	o.peer, o.env.tag = int32(dst), int32(tag)
	if err := n.Isend(r, buf, dst, d.tags.out(tag)); err != nil {
		d.put(o, o.gen)
		return failed(Status{}, d.sendError(c, dst, tag, err))
	}
	return Request{o: o, gen: o.gen}
}

func (d *nativeDevice) irecv(c *Comm, buf []byte, src, tag int) Request {
	n, err := d.comm(c)
	if err != nil {
		return failed(Status{}, d.recvError(c, src, tag, &Status{}, 0, err))
	}
	o, r := d.get(opRecv, c)
	o.env.source, o.env.tag, o.buf = int32(src), int32(tag), buf
	if err := n.Irecv(r, buf, src, d.tags.out(tag)); err != nil {
		d.put(o, o.gen)
		return failed(Status{}, d.recvError(c, src, tag, &Status{}, 0, err))
	}
	if c.revoked.Load() { // since comm looked
		d.revokePending(c)
	}
	return Request{o: o, gen: o.gen}
}

// probe waits for a message and leaves it where it is.
func (d *nativeDevice) probe(ctx context.Context, c *Comm, src, tag int) (Status, error) {
	status, _, err := d.look(c, src, tag, func(r *native.Request) (bool, error) {
		_, err := d.lib.Wait(ctx, r)
		return err == nil, err
	})
	return status, err
}

// iprobe looks once.
func (d *nativeDevice) iprobe(c *Comm, src, tag int) (Status, bool, error) {
	return d.look(c, src, tag, func(*native.Request) (bool, error) { return false, nil })
}

// recvAlloc finds a message, and receives the next one of the same source and tag. That is the one it has found only if no
// other goroutine receives in between: see RecvAlloc.
func (d *nativeDevice) recvAlloc(ctx context.Context, c *Comm, src, tag int, alloc func(Status) ([]byte, error)) (Status, error) {
	status, err := d.probe(ctx, c, src, tag)
	if err != nil {
		return status, err
	}
	buf, err := alloc(status)
	if err != nil {
		return status, c.fail("recv", status.Source, status.Tag, err, "")
	}
	return d.recv(ctx, c, buf, status.Source, status.Tag)
}

// look looks for a message. If there is none yet it calls otherwise, which may wait and reports whether there is one.
func (d *nativeDevice) look(c *Comm, src, tag int, otherwise func(*native.Request) (bool, error)) (Status, bool, error) {
	n, err := d.comm(c)
	if err != nil {
		return Status{}, false, d.failure(c, "probe", src, tag, err)
	}
	o, r := d.get(opRecv, c)
	defer d.put(o, o.gen)
	var done bool
	if err = n.Probe(r, src, d.tags.out(tag)); err == nil {
		if c.revoked.Load() { // since comm looked
			d.revokePending(c)
		}
		done, err = r.Test()
	}
	if err == nil && !done {
		done, err = otherwise(r)
	}
	if !done {
		_ = r.Cancel() // of a probe: at once, and never refused
	}
	switch {
	case err == nil && done:
		return d.status(r.Status()), true, nil
	case err == nil:
		return Status{}, false, nil
	case c.revoked.Load():
		err = ErrRevoked
	}
	return Status{}, false, d.failure(c, "probe", src, tag, err)
}

func (d *nativeDevice) keepMemory(mem []byte)    { d.lib.Keep(mem) }
func (d *nativeDevice) releaseMemory(mem []byte) { d.lib.Release(mem) }

// close waits for all ranks and ends MPI in this process. Then it releases what libraries keep with communicators.
func (d *nativeDevice) close(ctx context.Context) error {
	if err := d.lib.Close(ctx); err != nil {
		return &Error{Op: "close", Comm: "world", Rank: d.user.Rank(), Peer: ProcNull, Tag: AnyTag, Err: err}
	}
	d.mu.Lock()
	comms := d.comms
	d.comms = nil
	d.mu.Unlock()
	for c := range comms {
		c.release(ErrClosed)
	}
	d.host.close()
	close(d.closing)
	d.stopped.Wait()
	return nil
}

// nativeMembership lets a rank end the job; the library knows nothing of losses.
type nativeMembership struct{ d *nativeDevice }

func (nativeMembership) Start(MembershipEvents)    {}
func (nativeMembership) AnnounceLost(int, string)  {}
func (nativeMembership) Bye(context.Context) error { return nil }
func (nativeMembership) Close()                    {}

// Abort ends all ranks of the job, this one included: it does not return.
func (m nativeMembership) Abort(code int, reason string) {
	m.d.log.Error("the job is aborted", "rank", m.d.user.Rank(), "code", code, "reason", reason)
	m.d.lib.Abort(code)
}
