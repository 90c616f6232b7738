package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// Compress writes names as one hostlist expression the way Slurm does: order and
// repeats are kept, only the last number of a name goes into brackets, and only
// neighbours are joined (n3 n2 n1 is n[3,2,1]). Expand of the answer gives the
// names back.
//
// A name that no expression can stand for (empty, longer than 255 bytes, with
// white space, commas, brackets or control characters, or ending in a number
// beyond 64 bits) is an *Error with ErrSyntax, more than MaxHosts names one with ErrTooMany. Cost: linear.
func Compress(names []string) (string, error) {
	if len(names) > MaxHosts {
		return "", &Error{Err: ErrTooMany, Detail: fmt.Sprintf("%d host names, the limit is %d", len(names), MaxHosts)}
	}
	var b strings.Builder
	for i := 0; i < len(names); {
		if err := checkName(names[i]); err != nil {
			return "", err
		}
		prefix, digits := splitNumber(names[i])
		if i > 0 {
			b.WriteByte(',')
		}
		if digits == "" {
			b.WriteString(names[i])
			i++
			continue
		}
		var g group
		for i < len(names) {
			if err := checkName(names[i]); err != nil {
				return "", err
			}
			p, d := splitNumber(names[i])
			if p != prefix || d == "" || !g.add(d) {
				break
			}
			i++
		}
		b.WriteString(prefix)
		b.WriteString(g.String())
	}
	return b.String(), nil
}

// group is what one pair of brackets holds.
type group struct {
	runs  []run
	count int
}

// run is a sequence of consecutive numbers, all written with at least as many digits as the first.
type run struct {
	first, last string
	hi          uint64
}

// add takes the next number, or reports that the brackets are full.
func (g *group) add(digits string) bool {
	if g.count == MaxRange {
		return false
	}
	g.count++
	n, _ := strconv.ParseUint(digits, 10, 64) // checkName has seen to it
	if k := len(g.runs) - 1; k >= 0 {
		r := &g.runs[k]
		if r.hi+1 > r.hi && pad(r.hi+1, len(r.first)) == digits {
			r.hi++
			r.last = digits
			return true
		}
	}
	g.runs = append(g.runs, run{digits, digits, n})
	return true
}

func (g *group) String() string {
	if g.count == 1 {
		return g.runs[0].first
	}
	var b strings.Builder
	for i, r := range g.runs {
		b.WriteByte("[,"[min(i, 1)])
		b.WriteString(r.first)
		if r.last != r.first {
			b.WriteByte('-')
			b.WriteString(r.last)
		}
	}
	b.WriteByte(']')
	return b.String()
}

// splitNumber cuts a name before the digits it ends with.
func splitNumber(name string) (prefix, digits string) {
	i := len(name)
	for i > 0 && isDigit(name[i-1]) {
		i--
	}
	return name[:i], name[i:]
}

func checkName(name string) error {
	fail := func(column int, format string, args ...any) error {
		return &Error{Value: name, Column: column, Err: ErrSyntax, Detail: fmt.Sprintf(format, args...)}
	}
	if name == "" {
		return &Error{Err: ErrSyntax, Detail: "an empty host name"}
	}
	if len(name) > maxNameBytes {
		return fail(0, "a host name of %d bytes, the limit is %d", len(name), maxNameBytes)
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; c <= ' ' || c == 0x7f || c == ',' || c == '[' || c == ']' {
			return fail(i+1, "%q cannot be part of a host name", c)
		}
	}
	if prefix, digits := splitNumber(name); digits != "" {
		if _, err := strconv.ParseUint(digits, 10, 64); err != nil {
			return fail(len(prefix)+1, "number %s does not fit Slurm's 64 bits", digits)
		}
	}
	return nil
}
