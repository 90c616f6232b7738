package launch

// How a rank and a job end, and the exit code that follows.

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit is how one rank ended.
type Exit struct {
	Rank   int
	Code   int // 128+n for signal n
	Signal syscall.Signal
	// Ended: the launcher had asked it to end by then.
	Ended bool
	// Log is what first went wrong with its Tee, whose log is not complete then; nil if nothing did.
	Log error
	// cut: not all of its output has been taken.
	cut bool
}

func (x Exit) String() string {
	if x.Signal != 0 {
		return fmt.Sprintf("killed by signal %d (%s)", int(x.Signal), unix.SignalName(x.Signal))
	}
	return fmt.Sprintf("exit code %d", x.Code)
}

// Outcome is how a job ended.
type Outcome struct {
	// Code is the highest exit code of the ranks that ended by themselves; 124
	// after a timeout, 128+n after request n to stop. Ranks that were ended because another failed, or on request,
	// do not count: theirs would hide the code that tells why. It is 1 where only the log of a rank has failed.
	Code int
	// First is the first rank that failed by itself, nil if none did.
	First *Exit
	// Exits are in rank order.
	Exits    []Exit
	TimedOut bool
	// Interrupted is the request to stop that came first, 0 if none did.
	Interrupted syscall.Signal
}

// ExitTimeout is the exit code of jobs that ran out of time.
const ExitTimeout = 124

// code is the exit code of a job that has ended so. ending: the ranks were told to end; unlogged: a log has failed.
func (o *Outcome) code(ending, unlogged bool) int {
	code := 0
	for _, x := range o.Exits {
		if !x.Ended {
			code = max(code, x.Code)
		}
	}
	switch {
	case o.TimedOut:
		return ExitTimeout
	case code != 0:
		return code
	case o.Interrupted != 0:
		return 128 + int(o.Interrupted)
	case ending: // the context has ended
		return 128 + int(syscall.SIGTERM)
	case unlogged:
		return 1
	}
	return 0
}
