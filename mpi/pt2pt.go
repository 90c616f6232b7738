package mpi

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Send sends buf to rank dst with a tag. It blocks until buf may be used
// again: small messages are copied and leave at once, large ones wait for
// their receiver, and so do small ones when some MiB of this rank's wait there already. To
// oneself is no different, but over MPICH and its family, where that waits for its receive whatever its length. Any
// goroutine may call it. An ended ctx is as in Request.Wait.
func Send[T Elem](ctx context.Context, c *Comm, buf []T, dst, tag int) error {
	if err := c.checkSend(dst, tag); err != nil || dst == ProcNull {
		return err
	}
	return c.dev.send(ctx, c, Bytes(buf), dst, tag)
}

// Recv receives a message of at most len(buf) elements from rank src, or
// AnySource, with a tag, or AnyTag. It blocks until the message is in buf. A
// longer message is ErrTruncated: buf holds its beginning, and Status.Bytes its length (over libraries of MPICH's family
// buf is untouched, and Status.Bytes -1).
// Messages from one rank are received in the order in which it sent them.
func Recv[T Elem](ctx context.Context, c *Comm, buf []T, src, tag int) (Status, error) {
	if err := c.checkRecv("recv", src, tag); err != nil || src == ProcNull {
		return nobody, err
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
	if err := c.checkSend(dst, tag); err != nil || dst == ProcNull {
		return failed(Status{}, err)
	}
	return c.dev.isend(c, b, dst, tag)
}

func (c *Comm) irecv(b []byte, src, tag int) Request {
	if err := c.checkRecv("recv", src, tag); err != nil || src == ProcNull {
		return failed(nobody, err)
	}
	return c.dev.irecv(c, b, src, tag)
}

// Sendrecv sends to dst and receives from src at the same time, so that two
// ranks may exchange without deadlock. send and recv must not overlap. With ErrInFlight both are the
// library's until Error.Done is closed.
func Sendrecv[T Elem](ctx context.Context, c *Comm, send []T, dst, sendTag int, recv []T, src, recvTag int) (Status, error) {
	// Who sends and then learns that it receives nothing may wait for a rank that does the same.
	if err := c.checkSend(dst, sendTag); err != nil {
		return nobody, err
	}
	if err := c.checkRecv("recv", src, recvTag); err != nil {
		return nobody, err
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

// RecvAlloc receives a message of any length into new memory. One that its sender says is longer
// than this machine's memory is an error, and is left where it is. Over the system's MPI library no other goroutine
// must receive with the same source and tag between finding and receiving a message.
func RecvAlloc[T Elem](ctx context.Context, c *Comm, src, tag int) ([]T, Status, error) {
	if err := c.checkRecv("recv", src, tag); err != nil || src == ProcNull {
		return nil, nobody, err
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

// holdable refuses lengths for which the Go runtime would end the process, since the kernel has no
// memory for them. Shorter messages than any machine's memory are not looked at.
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
	if err := c.checkRecv("probe", src, tag); err != nil || src == ProcNull {
		return nobody, err
	}
	return c.dev.probe(ctx, c, src, tag)
}

// Iprobe is Probe that looks once, making progress, and reports whether there
// is such a message.
func (c *Comm) Iprobe(src, tag int) (Status, bool, error) {
	if err := c.checkRecv("probe", src, tag); err != nil || src == ProcNull {
		return nobody, err == nil, err
	}
	return c.dev.iprobe(c, src, tag)
}

func (c *Comm) checkSend(dst, tag int) error {
	if dst < 0 && dst != ProcNull || dst >= len(c.group) {
		return c.fail("send", dst, tag, ErrRank, c.rankRange(dst))
	}
	if tag < 0 || tag > MaxTag {
		return c.fail("send", dst, tag, ErrTag, tagRange(tag))
	}
	return nil
}

func (c *Comm) checkRecv(what string, src, tag int) error {
	if src < ProcNull || src >= len(c.group) {
		return c.fail(what, src, tag, ErrRank, c.rankRange(src))
	}
	if tag < AnyTag || tag > MaxTag {
		return c.fail(what, src, tag, ErrTag, tagRange(tag))
	}
	return nil
}
