package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// What can be wrong with what Slurm, or a user in Slurm's place, says.
var (
	// ErrNotSlurm: no variable of a Slurm job is set.
	ErrNotSlurm = errors.New("not inside a Slurm job")
	// ErrNoStep: a batch or salloc shell, where no task of a step runs.
	ErrNoStep = errors.New("inside a Slurm job but not in a step; start it with srun")
	// ErrDaemonStep: the SLURM_* variables describe the daemons of mpirun, prterun or
	// mpiexec, one per node, or fisterra run, not the ranks they started.
	ErrDaemonStep = errors.New("the Slurm step is that of another launcher or its daemons")
	// ErrMissing: a variable that every task of a step has is not set.
	ErrMissing = errors.New("is not set")
	// ErrSyntax: a value that cannot be parsed.
	ErrSyntax = errors.New("cannot be read")
	// ErrTooMany: an expression that would expand beyond the limits.
	ErrTooMany = errors.New("too many")
	// ErrInconsistent: two values that contradict each other.
	ErrInconsistent = errors.New("contradiction")
	// ErrRepeated: a host, port, address or rank given twice.
	ErrRepeated = errors.New("given twice")
	// ErrRange: a number outside what it may be.
	ErrRange = errors.New("out of range")
	// ErrRole: a role that does not exist, or a role list that cannot be.
	ErrRole = errors.New("bad role")
	// ErrRoleCount: more or fewer roles than tasks.
	ErrRoleCount = errors.New("roles and tasks differ in number")
	// ErrPorts: fewer reserved ports than a node has tasks, or none in strict mode.
	ErrPorts = errors.New("not enough reserved ports")
	// ErrSignal: a signal that a job script's program does not act on as the script needs.
	ErrSignal = errors.New("not a signal for this job")
	// ErrAddress: a host has no usable address.
	ErrAddress = errors.New("no address")
	// ErrNotOwn: the address computed for this task belongs to another host.
	ErrNotOwn = errors.New("address is not this host's own")
)

// Error says where wrong input stood and what is wrong with it. errors.Is finds
// the sentinel in Err.
type Error struct {
	Source string // the variable or option, "" for a bare expression
	Value  string // the text found there
	Column int    // 1-based byte within Value, 0 when the whole is meant
	Detail string // what is wrong, with the numbers, and what would be right
	Err    error  // one of the package's sentinels, or what a given function answered
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("slurm: ")
	switch {
	case e.Source != "" && e.Value != "":
		fmt.Fprintf(&b, "%s=%s: ", e.Source, quote(e.Value))
	case e.Source != "" && errors.Is(e.Err, ErrMissing):
		b.WriteString(e.Source + " ")
	case e.Source != "":
		b.WriteString(e.Source + ": ")
	case e.Value != "":
		b.WriteString(quote(e.Value) + ": ")
	}
	if e.Column > 0 {
		fmt.Fprintf(&b, "column %d: ", e.Column)
	}
	switch {
	case e.Detail == "":
		b.WriteString(e.Err.Error())
	case errors.Is(e.Err, ErrMissing):
		b.WriteString(e.Err.Error() + ": " + e.Detail)
	default:
		b.WriteString(e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// from names the source in an error that was made without one.
func from(source string, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Source == "" {
		e.Source = source
	}
	return err
}

// quote shows a value in a message without letting a long one fill the screen.
func quote(s string) string {
	const limit = 120
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
