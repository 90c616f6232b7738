package pmix

import (
	"errors"
	"fmt"
	"strings"
)

// What can go wrong with the PMIx server.
var (
	// ErrAbsent: the environment names no PMIx server.
	ErrAbsent = errors.New("no PMIx server")
	// ErrNoLibrary: libpmix was not found.
	ErrNoLibrary = errors.New("libpmix not found")
	// ErrVersion: a libpmix whose structures are not known.
	ErrVersion = errors.New("libpmix of an unknown version")
	// ErrNotFound: nobody put the key before the last fence.
	ErrNotFound = errors.New("key not found")
	// ErrKey: not a usable key.
	ErrKey = errors.New("invalid key")
	// ErrRank: no such rank in the job.
	ErrRank = errors.New("invalid rank")
	// ErrTimeout: the server did not answer in time.
	ErrTimeout = errors.New("timed out")
	// ErrLost: a rank has ended without taking part.
	ErrLost = errors.New("a rank has ended without taking part")
	// ErrProtocol: the library answered something that it should not.
	ErrProtocol = errors.New("unexpected answer")
	// ErrFailed: any other status; the text is the library's.
	ErrFailed = errors.New("PMIx error")
	// ErrClosed: after Finalize.
	ErrClosed = errors.New("closed")
)

// Error says which operation failed and on what.
type Error struct {
	Op     string // "init", "put", "fence", "get"
	Key    string
	Rank   int // whose value; -1 if of none
	Status int // PMIx status, 0 if none
	Detail string
	Err    error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pmix: %s", e.Op)
	if e.Key != "" {
		fmt.Fprintf(&b, " %q", e.Key)
	}
	if e.Rank >= 0 {
		fmt.Fprintf(&b, " of rank %d", e.Rank)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Status != 0 {
		fmt.Fprintf(&b, " (status %d)", e.Status)
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }
