package collective

import (
	"errors"
	"fmt"
	"strings"
)

// ErrArgument: a call's own arguments make no sense, whatever the other ranks do.
var ErrArgument = errors.New("bad argument")

// ErrBroken: an earlier collective on the communicator failed, so that its ranks no longer agree
// on which collective comes next. Error.Err also holds why.
var ErrBroken = errors.New("communicator broken by an earlier collective")

// Error says which collective failed, and where. Err wraps mpi.ErrPeerLost,
// mpi.ErrMismatch, mpi.ErrRevoked, mpi.ErrCancelled, mpi.ErrClosed, ErrArgument or the
// context's cause.
type Error struct {
	Op   string // "allreduce", "bcast", ...
	Comm string
	Seq  uint32 // which collective on this communicator, from 1; 0: it did not start
	Rank int    // this rank
	Err  error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "collective: rank %d: %s", e.Rank, e.Op)
	if e.Seq > 0 {
		fmt.Fprintf(&b, " #%d", e.Seq)
	}
	fmt.Fprintf(&b, " on %s: %v", e.Comm, e.Err)
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }
