package mpi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// What went wrong. Errors returned by this package wrap one of these, the
// context's cause, or what the system said (a syscall.Errno); who did what with whom stands in *Error.
var (
	// ErrTruncated: the message is longer than the buffer, which holds its beginning. Over the system's MPI library the
	// buffer may be untouched.
	ErrTruncated = errors.New("message truncated")
	// ErrPeerLost: a rank that the operation needs has died, or cannot be reached any more. Error.Peer is that rank.
	ErrPeerLost = errors.New("peer lost")
	// ErrRevoked: a member has called Revoke.
	ErrRevoked = errors.New("communicator revoked")
	// ErrRank: no such rank in the communicator.
	ErrRank = errors.New("invalid rank")
	// ErrTag: a tag outside 0 to MaxTag; receives take AnyTag besides.
	ErrTag = errors.New("invalid tag")
	// ErrArgument: a value that the call does not take, such as a negative length, or memory that is not from Alloc.
	ErrArgument = errors.New("invalid argument")
	// ErrRequest: the request has been waited for already, a Persistent one has not been yet, the requests of WaitAny are
	// of two worlds, or the lock that is to be given back is not held.
	ErrRequest = errors.New("request is not active")
	// ErrCancelled: the operation was given up, by Request.Cancel, or by another member where all are needed.
	ErrCancelled = errors.New("cancelled")
	// ErrClosed: the world has been closed, or the communicator or the window freed.
	ErrClosed = errors.New("world closed")
	// ErrLauncher: what the launcher says of the ranks is not what there is, or it cannot be asked.
	ErrLauncher = errors.New("launcher and ranks disagree")
	// ErrLayout: the ranks were started with different Config.Layouts.
	ErrLayout = errors.New("ranks disagree on the job's layout")
	// ErrMismatch: members called different things where all have to call the same.
	ErrMismatch = errors.New("ranks disagree on the operation")
	// ErrTransport: there is no way for messages to a rank, or none that can do what is asked for.
	ErrTransport = errors.New("no usable transport")
	// ErrStartTimeout: not all ranks have met within Config.StartTimeout.
	ErrStartTimeout = errors.New("the ranks have not met in time")

	// ErrInFlight: the operation was given up, or its peer is lost, but a peer or the network may still touch
	// its buffer, which stays the library's until Error.Done is closed. World.Close waits a second for that.
	ErrInFlight = errors.New("buffer still in flight")
)

// freed is the ErrClosed of something whose world may go on.
type freed string

func (f freed) Error() string { return "the " + string(f) + " has been freed" }

func (f freed) Is(target error) bool { return target == ErrClosed }

const (
	errFreed            = freed("communicator")
	errFreedThere       = freed("receiver's communicator")
	errWindowFreed      = freed("window")
	errWindowFreedThere = freed("target's part of the window")
)

// startTimeout is the ErrStartTimeout of a time, and the cause of a context that ends then.
type startTimeout time.Duration

func (d startTimeout) Error() string {
	return fmt.Sprintf("the ranks have not met within %v", time.Duration(d))
}

func (d startTimeout) Is(target error) bool {
	return target == ErrStartTimeout || target == context.DeadlineExceeded
}

// Error says who was doing what with whom when Err happened.
type Error struct {
	Op     string // "send", "recv", "split", ...
	Comm   string // communicator's name
	Rank   int    // this rank in it, or in the world if Comm is ""
	Peer   int    // the other rank in it; AnySource: any; ProcNull: none
	Host   string // the other rank's host, "" if none
	Tag    int    // AnyTag if none
	Detail string // numbers and names that help, may be ""
	Err    error

	// Done is set with ErrInFlight: closed when the buffer is free again, or all buffers of a call that had several.
	Done <-chan struct{}
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mpi: rank %d %s", e.Rank, e.Op)
	switch {
	case e.Peer >= 0:
		word := "with"
		switch {
		case strings.Contains(e.Op, "recv"), e.Op == "probe":
			word = "from"
		case strings.Contains(e.Op, "send"):
			word = "to"
		}
		fmt.Fprintf(&b, " %s rank %d", word, e.Peer)
		if e.Host != "" {
			fmt.Fprintf(&b, " (%s)", e.Host)
		}
	case e.Peer == AnySource && e.Op == "recv":
		b.WriteString(" from any rank")
	}
	if e.Tag >= 0 {
		fmt.Fprintf(&b, " tag %d", e.Tag)
	}
	if e.Comm != "" {
		fmt.Fprintf(&b, " on %s", e.Comm)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// describe makes the caller's error from an op's.
func (e *engine) describe(o *op, err error) error {
	c := o.comm
	what, peer := "send", -1
	if o.kind == opRecv {
		what = "recv"
		if o.env.source >= 0 {
			peer = c.RankOf(int(o.env.source))
		} else if o.peer >= 0 {
			peer = c.RankOf(int(o.peer))
		}
	} else {
		peer = c.RankOf(int(o.peer))
	}
	if errors.Is(err, ErrTruncated) {
		return c.fail(what, peer, int(o.env.tag), err, fmt.Sprintf("%d B into %d B", o.bytes, len(o.buf)))
	}
	return c.failBy(what, peer, int(o.env.tag), err)
}

// failBy is fail for an err that may be a loss: then the error names the rank that was lost, not peer.
func (c *Comm) failBy(what string, peer, tag int, err error) error {
	var l *lostError
	if !errors.As(err, &l) {
		return c.fail(what, peer, tag, err, "")
	}
	lost := ErrPeerLost
	if errors.Is(err, ErrInFlight) {
		lost = fmt.Errorf("%w: %w", ErrInFlight, ErrPeerLost)
	}
	return c.fail(what, c.RankOf(l.rank), tag, lost, l.why)
}
