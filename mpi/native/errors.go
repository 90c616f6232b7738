package native

import (
	"errors"
	"fmt"
	"strings"
)

// What can go wrong. [Error] says where.
var (
	// ErrNoLibrary: no MPI library was found, or the one asked for is not there.
	ErrNoLibrary = errors.New("no MPI library")
	// ErrUnknownLibrary: a library was loaded that is not an MPI library we know.
	ErrUnknownLibrary = errors.New("not an MPI library of a known kind")
	// ErrTwoLibraries: this process has another MPI library loaded already.
	ErrTwoLibraries = errors.New("another MPI library is loaded already")
	// ErrLauncher: the launcher started more or fewer ranks than the library sees. An
	// MPI library under another's launcher silently makes every rank a world of one.
	ErrLauncher = errors.New("launcher and MPI library disagree")
	// ErrThreads: the library cannot be called from more than one thread.
	ErrThreads = errors.New("MPI library lacks thread support")
	// ErrClosed: the library has been finalized.
	ErrClosed = errors.New("MPI is finalized")
	// ErrTruncated: the message is longer than the buffer.
	ErrTruncated = errors.New("message truncated")
	// ErrRank: no such rank in the communicator.
	ErrRank = errors.New("invalid rank")
	// ErrTag: a tag outside 0..MaxTag.
	ErrTag = errors.New("invalid tag")
	// ErrLength: a buffer or list is not as long as the operation needs.
	ErrLength = errors.New("wrong length")
	// ErrCancelled: the receive was cancelled before it matched.
	ErrCancelled = errors.New("cancelled")
	// ErrUnsupported: MPI, or this library, cannot do it.
	ErrUnsupported = errors.New("not supported by the MPI library")
	// ErrBusy: the request is still in flight.
	ErrBusy = errors.New("request is in flight")
	// ErrFailed: any other error of the library; the text is the library's.
	ErrFailed = errors.New("MPI error")
)

// Error says which call failed, with whom, and what the library said.
type Error struct {
	Op      string // "Irecv", "Iallreduce"
	Comm    string // name of the communicator
	Rank    int    // this process in it
	Peer    int    // the other rank; AnySource for a collective or a wildcard
	Tag     int    // AnyTag for a collective or a wildcard
	Library string // "openmpi 4.1.4"
	Code    int    // the library's own code, 0 where the check is ours
	Detail  string // the library's text for the code, or our numbers
	Err     error  // the sentinel
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "native: %s", e.Op)
	if e.Comm != "" {
		fmt.Fprintf(&b, " on %s rank %d", e.Comm, e.Rank)
	}
	if e.Peer != AnySource {
		fmt.Fprintf(&b, " peer %d", e.Peer)
	}
	if e.Tag != AnyTag {
		fmt.Fprintf(&b, " tag %d", e.Tag)
	}
	if e.Library != "" {
		fmt.Fprintf(&b, " (%s)", e.Library)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

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
