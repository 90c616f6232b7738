package collective

import (
	"errors"
	"fmt"
)

// ErrArgument: a call's own arguments make no sense, whatever the other ranks do.
var ErrArgument = errors.New("bad argument")

// ErrBroken: an earlier collective on the communicator failed, so that its ranks no longer agree
// on which collective comes next. Error.Err also holds why.
var ErrBroken = errors.New("communicator broken by an earlier collective")

// Error says which collective failed, and where. What Err wraps stands in the package's documentation; mpi.ErrInFlight may
// come with any of it.
type Error struct {
	Op   string // "allreduce", "bcast", ...
	Comm string
	Seq  uint32 // which collective on this communicator, from 1; 0: it did not start
	Rank int    // this rank
	Err  error
}

func (e *Error) Error() string {
	return fmt.Sprintf("collective: rank %d: %s on %s: %v", e.Rank, e.call(), e.Comm, e.Err)
}

// call names the collective, with its number if it got one.
func (e *Error) call() string {
	if e.Seq == 0 {
		return e.Op
	}
	return fmt.Sprintf("%s #%d", e.Op, e.Seq)
}

func (e *Error) Unwrap() error { return e.Err }
