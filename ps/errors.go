package ps

import (
	"errors"
	"fmt"
	"strings"
)

// What went wrong. Errors of this package wrap one of these or an error of package mpi; *Error names the rank
// concerned.
var (
	ErrConfig   = errors.New("bad configuration")
	ErrFrame    = errors.New("malformed frame")
	ErrFailed   = errors.New("the run has failed")
	ErrDeadline = errors.New("deadline exceeded")
	ErrRefused  = errors.New("refused by the server")
)

// Error says which role on which rank and host met Err while doing what.
type Error struct {
	Op     string // "push", "pull", "done", ...
	Role   string // the other side: "ps 0", "worker 1"; "" if none
	Rank   int    // its rank
	Host   string // its host
	Detail string
	Err    error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("ps: ")
	b.WriteString(e.Op)
	if e.Role != "" {
		fmt.Fprintf(&b, ": %s (rank %d on %s)", e.Role, e.Rank, e.Host)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

func configError(format string, args ...any) error {
	return &Error{Op: "config", Err: ErrConfig, Detail: fmt.Sprintf(format, args...)}
}
