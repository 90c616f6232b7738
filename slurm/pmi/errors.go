package pmi

import (
	"errors"
	"fmt"
)

// What can go wrong with the process manager.
var (
	// ErrAbsent: neither PMI_FD nor PMI_PORT is set.
	ErrAbsent = errors.New("no process manager: neither PMI_FD nor PMI_PORT is set")
	// ErrEnvironment: the variables are there but cannot be right.
	ErrEnvironment = errors.New("bad process manager variables")
	// ErrNotOpen: PMI_FD names a descriptor that is not the launcher's socket.
	ErrNotOpen = errors.New("not an open socket")
	// ErrProtocol: an answer that the protocol does not allow here.
	ErrProtocol = errors.New("unexpected answer")
	// ErrRefused: the process manager answered with an error code.
	ErrRefused = errors.New("refused")
	// ErrNotFound: nobody has put the key.
	ErrNotFound = errors.New("no such key")
	// ErrKey: a key that is too long, has other than letters, digits, '.', '_', '-',
	// or was put before.
	ErrKey = errors.New("bad key")
	// ErrTooLarge: a value beyond MaxValueBytes.
	ErrTooLarge = errors.New("value too large")
	// ErrTimeout: no answer before the deadline.
	ErrTimeout = errors.New("no answer in time")
	// ErrLost: the process manager closed the connection.
	ErrLost = errors.New("connection lost")
	// ErrClosed: the client was finalized or closed.
	ErrClosed = errors.New("closed")
)

// Error says which operation failed and on what.
type Error struct {
	Op     string // "open", "put", "fence", ...
	Key    string // of put and get
	Detail string
	Err    error // one of the package's sentinels, or what the system said
}

func (e *Error) Error() string {
	s := "pmi: " + e.Op
	if e.Key != "" {
		s += fmt.Sprintf(" %q", e.Key)
	}
	s += ": " + e.Err.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }
