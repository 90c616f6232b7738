package slurm

import (
	"fmt"
	"slices"
	"strings"
)

// MaxPort is the highest TCP port.
const MaxPort = 65535

// ParsePorts reads SLURM_STEP_RESV_PORTS ("12000-12001,12999"), the ports that
// Slurm reserved, the same on every node of the step. The answer ascends; the
// k-th task of a node gets the k-th port. Anything outside 1 to 65535, an empty
// list, a range that goes down and a port given twice are errors.
func ParsePorts(text string) ([]int, error) {
	var ports []int
	column := 1
	for item := range strings.SplitSeq(text, ",") {
		fail := func(err error, format string, args ...any) error {
			return &Error{Value: text, Column: column, Err: err, Detail: fmt.Sprintf(format, args...)}
		}
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		lo, err := parsePort(first)
		if err != nil {
			return nil, fail(err, "%q is not a port or a range of ports from 1 to %d", item, MaxPort)
		}
		hi, err := parsePort(last)
		if err != nil {
			return nil, fail(err, "%q is not a port or a range of ports from 1 to %d", item, MaxPort)
		}
		if hi < lo {
			return nil, fail(ErrSyntax, "range of ports goes down from %d to %d", lo, hi)
		}
		if len(ports)+hi-lo+1 > MaxPort {
			return nil, fail(ErrRepeated, "more ports than there are")
		}
		for p := lo; p <= hi; p++ {
			ports = append(ports, p)
		}
		column += len(item) + 1
	}
	slices.Sort(ports)
	for i := 1; i < len(ports); i++ {
		if ports[i] == ports[i-1] {
			return nil, &Error{Value: text, Err: ErrRepeated, Detail: fmt.Sprintf("port %d is given twice", ports[i])}
		}
	}
	return ports, nil
}

func parsePort(s string) (int, error) {
	n, err := parseNumber(s, MaxPort)
	if err == nil && n == 0 {
		err = ErrRange
	}
	return n, err
}
