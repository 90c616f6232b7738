package mpi

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// ErrUnsupported: the device under the communicator cannot do it, such as a
// collective of more elements than the system's MPI library counts.
var ErrUnsupported = errors.New("not supported by the device")

// sentinels translates the library adapter's errors to this package's.
var sentinels = []struct{ native, own error }{
	{native.ErrTruncated, ErrTruncated},
	{native.ErrRank, ErrRank},
	{native.ErrTag, ErrTag},
	{native.ErrCancelled, ErrCancelled},
	{native.ErrClosed, ErrClosed},
	{native.ErrUnsupported, ErrUnsupported},
	{native.ErrLength, ErrMismatch},
}

// failure makes the caller's error from the library's, or from the context's.
func (d *nativeDevice) failure(c *Comm, what string, peer, tag int, err error) error {
	var detail string
	var at *native.Error
	if errors.As(err, &at) {
		detail = at.Detail
		if errors.Is(at.Err, native.ErrTag) {
			detail = d.tags.detail(tag, d.name)
		}
		if !errors.Is(err, ErrInFlight) {
			err = at.Err
		}
	}
	for _, s := range sentinels {
		if errors.Is(err, s.native) {
			err = s.own
			break
		}
	}
	return c.fail(what, peer, tag, err, detail)
}

func (d *nativeDevice) sendError(c *Comm, dst, tag int, err error) error {
	return d.failure(c, "send", dst, tag, err)
}

// recvError is of a receive into room bytes with status s. Of a truncated
// message only Open MPI tells whose it was and how long; the others leave the status as it was.
func (d *nativeDevice) recvError(c *Comm, src, tag int, s *Status, room int, err error) error {
	if !errors.Is(err, native.ErrTruncated) {
		return d.failure(c, "recv", src, tag, err)
	}
	if d.lib.Library().Family != native.OpenMPI || s.Bytes <= room {
		*s = Status{Source: src, Tag: tag, Bytes: -1}
		return c.fail("recv", src, tag, ErrTruncated, fmt.Sprintf("into %d B; %s does not tell how long it was", room, d.name))
	}
	return c.fail("recv", s.Source, s.Tag, ErrTruncated, fmt.Sprintf("%d B into %d B", s.Bytes, room))
}

// describe makes the caller's error of an operation that its op describes.
func (d *nativeDevice) describe(o *op, s *Status, err error) error {
	d.mu.Lock()
	kind, c, peer, env, room, reason := o.kind, o.comm, int(o.peer), o.env, len(o.buf), o.err
	d.mu.Unlock()
	if reason != nil && errors.Is(err, native.ErrCancelled) {
		err = reason
	}
	switch kind {
	case opSend:
		return d.sendError(c, peer, int(env.tag), err)
	case opRecv:
		return d.recvError(c, int(env.source), int(env.tag), s, room, err)
	}
	what := "collective"
	var at *native.Error
	if errors.As(err, &at) {
		what = strings.ToLower(strings.TrimPrefix(at.Op, "I"))
	}
	return d.failure(c, what, ProcNull, AnyTag, err)
}

// inFlight is the request that an error says the library still has, or nil.
func inFlight(err error) *native.Request {
	var busy *native.InFlightError
	if errors.As(err, &busy) {
		return busy.Request
	}
	return nil
}
