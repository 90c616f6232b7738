package mpi

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Send sends buf to rank dst with a tag. It blocks until buf may be used again. Small messages are copied and
// leave at once. Large ones wait for their receiver, and so do small ones when some MiB from this rank wait there already.
// The same holds for a message to oneself, except over MPICH and its family, where it waits for its receive whatever its
// length. Any goroutine may call Send. If ctx ends first, the outcome is that of Request.Wait.
func Send[T Elem](ctx context.Context, c *Comm, buf []T, dst, tag int) error {
	if !c.sends(dst, tag) {
		return c.misaddressed("send", dst, tag)
	}
	if dst == ProcNull {
		return nil
	}
	return c.dev.send(ctx, c, Bytes(buf), dst, tag)
}

// Recv receives a message of at most len(buf) elements from rank src, or
// AnySource, with a tag, or AnyTag. It blocks until the message is in buf. If
// the message is longer, that is ErrTruncated: buf holds its beginning, and Status.Bytes is its length. Over libraries of
// MPICH's family, buf is then untouched and Status.Bytes is -1; over Open MPI, buf is untouched where UCX moves messages.
// Messages from one rank are received in the order in which it sent them.
func Recv[T Elem](ctx context.Context, c *Comm, buf []T, src, tag int) (Status, error) {
	if !c.receives(src, tag) {
		return nobody, c.misaddressed("recv", src, tag)
	}
	if src == ProcNull {
		return nobody, nil
	}
	return c.dev.recv(ctx, c, Bytes(buf), src, tag)
}

// Isend starts a send and returns at once. buf must not be changed until the
// request has been waited for. Mistakes in the arguments are reported by Wait.
func Isend[T Elem](c *Comm, buf []T, dst, tag int) Request {
	return c.isend(Bytes(buf), dst, tag)
}

// Irecv starts a receive and returns at once. buf must not be touched until
// the request has been waited for.
func Irecv[T Elem](c *Comm, buf []T, src, tag int) Request {
	return c.irecv(Bytes(buf), src, tag)
}

func (c *Comm) isend(b []byte, dst, tag int) Request {
	if !c.sends(dst, tag) {
		return failed(Status{}, c.misaddressed("send", dst, tag))
	}
	if dst == ProcNull {
		return Request{o: sent}
	}
	return c.dev.isend(c, b, dst, tag)
}

func (c *Comm) irecv(b []byte, src, tag int) Request {
	if !c.receives(src, tag) {
		return failed(nobody, c.misaddressed("recv", src, tag))
	}
	if src == ProcNull {
		return Request{o: nothing}
	}
	return c.dev.irecv(c, b, src, tag)
}

// Sendrecv sends to dst and receives from src at the same time, so that two
// ranks may exchange without deadlock. send and recv must not overlap. After ErrInFlight both buffers are the
// library's until Error.Done is closed.
func Sendrecv[T Elem](ctx context.Context, c *Comm, send []T, dst, sendTag int, recv []T, src, recvTag int) (Status, error) {
	// Both checks come before anything is sent: a rank that sends although it cannot receive may wait for one that does
	// the same.
	if !c.sends(dst, sendTag) {
		return nobody, c.misaddressed("send", dst, sendTag)
	}
	if !c.receives(src, recvTag) {
		return nobody, c.misaddressed("recv", src, recvTag)
	}
	return c.dev.sendrecv(ctx, c, Bytes(send), dst, sendTag, Bytes(recv), src, recvTag)
}

// bothWays is Sendrecv by a device's other calls.
func bothWays(ctx context.Context, c *Comm, send []byte, dst, sendTag int, recv []byte, src, recvTag int) (Status, error) {
	in := Irecv(c, recv, src, recvTag)
	sendErr := Send(ctx, c, send, dst, sendTag)
	if sendErr != nil {
		in.Cancel()
	}
	status, err := in.Wait(ctx)
	return status, worse(sendErr, err)
}

// RecvAlloc receives a message of any length into new memory. A message that is longer than this machine's memory, as its
// sender says, is an error, and is left where it is. Over the system's MPI library RecvAlloc finds a message and then
// receives it: no other goroutine must receive with the same source and tag in between.
func RecvAlloc[T Elem](ctx context.Context, c *Comm, src, tag int) ([]T, Status, error) {
	if !c.receives(src, tag) {
		return nil, nobody, c.misaddressed("recv", src, tag)
	}
	if src == ProcNull {
		return nil, nobody, nil
	}
	var buf []T
	status, err := c.dev.recvAlloc(ctx, c, src, tag, func(s Status) ([]byte, error) {
		if err := holdable(s.Bytes); err != nil {
			return nil, err
		}
		buf = make([]T, Count[T](s))
		return Bytes(buf), nil
	})
	return buf, status, err
}

// holdable refuses lengths for which the kernel has no memory, so that the Go runtime would end the process. Lengths that any
// machine has memory for are not checked.
func holdable(nBytes int) error {
	var s unix.Sysinfo_t
	if nBytes < 1<<30 || unix.Sysinfo(&s) != nil {
		return nil
	}
	if most := (uint64(s.Totalram) + uint64(s.Totalswap)) * uint64(s.Unit); uint64(nBytes) > most {
		return fmt.Errorf("a message of %d bytes, and this machine has memory for %d: %w", nBytes, most, unix.ENOMEM)
	}
	return nil
}

// Probe blocks until a message from src (or AnySource) with tag (or AnyTag)
// can be received, and describes it without receiving it. Not collective.
func (c *Comm) Probe(ctx context.Context, src, tag int) (Status, error) {
	if !c.receives(src, tag) {
		return nobody, c.misaddressed("probe", src, tag)
	}
	if src == ProcNull {
		return nobody, nil
	}
	return c.dev.probe(ctx, c, src, tag)
}

// Iprobe is Probe that looks once, making progress, and reports whether there
// is such a message.
func (c *Comm) Iprobe(src, tag int) (Status, bool, error) {
	if !c.receives(src, tag) {
		return nobody, false, c.misaddressed("probe", src, tag)
	}
	if src == ProcNull {
		return nobody, true, nil
	}
	return c.dev.iprobe(c, src, tag)
}

// sends reports whether messages can be sent to a rank with a tag.
func (c *Comm) sends(dst, tag int) bool {
	return (dst >= 0 && dst < len(c.group) || dst == ProcNull) && tag >= 0 && tag <= MaxTag
}

// receives reports whether messages can come from a rank, or any, with a tag, or any.
func (c *Comm) receives(src, tag int) bool {
	return src >= ProcNull && src < len(c.group) && tag >= AnyTag && tag <= MaxTag
}

// misaddressed says what is wrong where sends or receives is false: the rank, or else the tag.
func (c *Comm) misaddressed(what string, rank, tag int) error {
	if rank < ProcNull || rank >= len(c.group) || rank == AnySource && what == "send" {
		return c.fail(what, rank, tag, ErrRank, c.rankRange(rank))
	}
	return c.fail(what, rank, tag, ErrTag, tagRange(tag))
}
