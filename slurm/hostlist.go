package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of Expand. Slurm itself refuses a range of more than MaxRange numbers;
// the others keep a hostile expression from eating memory.
const (
	MaxRange     = 65536   // numbers in one pair of brackets
	MaxHosts     = 1 << 18 // names in all
	maxNameBytes = 255     // one name, the limit of DNS
)

// Expand gives the names of a hostlist expression ("n[1-3,07],gpu1") in Slurm's
// order, which is the order SLURM_NODEID counts in: repeats are kept, nothing is
// sorted. An empty expression has no names.
//
// A name may hold several brackets if it ends with one. A range takes its width
// from its first number ([08-11] is 08 09 10 11). Elements are separated by
// commas or white space; empty ones do not count. With three or more brackets
// Slurm lets the last vary fastest, then the first, then the second and so on.
//
// Where scontrol answers something nobody can have meant and exits with 0 (a bracket that is not closed, blanks
// before a number, a number beyond 64 bits), Expand returns an *Error with the column. Blanks after a comma in
// brackets, which Slurm counts as digits, are ignored. ErrSyntax and ErrTooMany are the sentinels. Cost: linear in
// the length of the answer.
func Expand(expr string) ([]string, error) {
	p := parser{expr: expr}
	var names []string
	for {
		el, ok, err := p.element()
		if err != nil {
			return nil, err
		}
		if !ok {
			return names, nil
		}
		if n := el.count(); n > MaxHosts-len(names) {
			return nil, p.fail(ErrTooMany, el.column, "expands to %d names or more, the limit is %d", len(names)+n, MaxHosts)
		}
		if el.width() > maxNameBytes {
			return nil, p.fail(ErrTooMany, el.column, "a host name of %d bytes, the limit is %d", el.width(), maxNameBytes)
		}
		names = el.expand(names)
	}
}

// numberRange is lo..hi written with at least width digits.
type numberRange struct {
	lo, hi uint64
	width  int
}

func (r numberRange) count() uint64 { return r.hi - r.lo + 1 }

// part is literal text followed by the numbers of one bracket.
type part struct {
	text   string
	ranges []numberRange
}

// element is one comma-separated item: parts, each ending with brackets, or a
// literal name alone.
type element struct {
	parts   []part
	literal string
	column  int
}

// count is the number of names, or MaxHosts+1 for any larger number.
func (e *element) count() int {
	n := uint64(1)
	for _, p := range e.parts {
		var sum uint64
		for _, r := range p.ranges {
			sum += r.count()
		}
		if n *= sum; n > MaxHosts {
			return MaxHosts + 1
		}
	}
	return int(n)
}

// width is the length of the element's longest name in bytes.
func (e *element) width() int {
	n := len(e.literal)
	for _, p := range e.parts {
		longest := 0
		for _, r := range p.ranges {
			longest = max(longest, r.width, len(strconv.FormatUint(r.hi, 10)))
		}
		n += len(p.text) + longest
	}
	return n
}

func (e *element) expand(names []string) []string {
	if len(e.parts) == 0 {
		return append(names, e.literal)
	}
	// The order of loops from the outermost: the last bracket but one, backwards
	// to the first, then the last one innermost.
	last := len(e.parts) - 1
	order := make([]int, 0, len(e.parts))
	for i := last - 1; i >= 0; i-- {
		order = append(order, i)
	}
	order = append(order, last)
	numbers := make([]string, len(e.parts))
	var name strings.Builder
	var walk func(depth int)
	walk = func(depth int) {
		if depth == len(order) {
			name.Reset()
			for i, p := range e.parts {
				name.WriteString(p.text)
				name.WriteString(numbers[i])
			}
			names = append(names, name.String())
			return
		}
		i := order[depth]
		for _, r := range e.parts[i].ranges {
			for k := uint64(0); k < r.count(); k++ {
				numbers[i] = pad(r.lo+k, r.width)
				walk(depth + 1)
			}
		}
	}
	walk(0)
	return names
}

// pad writes n with at least width digits.
func pad(n uint64, width int) string {
	s := strconv.FormatUint(n, 10)
	if len(s) >= width {
		return s
	}
	return strings.Repeat("0", width-len(s)) + s
}

type parser struct {
	expr string
	at   int // next byte
}

func (p *parser) fail(err error, column int, format string, args ...any) error {
	return &Error{Value: p.expr, Column: column, Err: err, Detail: fmt.Sprintf(format, args...)}
}

func isSeparator(c byte) bool { return c == ',' || c == ' ' || c == '\t' || c == '\n' }
func isDigit(c byte) bool     { return '0' <= c && c <= '9' }

// element reads the next item; ok is false at the end.
func (p *parser) element() (el element, ok bool, err error) {
	for p.at < len(p.expr) && isSeparator(p.expr[p.at]) {
		p.at++
	}
	if p.at == len(p.expr) {
		return el, false, nil
	}
	el.column = p.at + 1
	start := p.at
	for p.at < len(p.expr) && !isSeparator(p.expr[p.at]) {
		switch c := p.expr[p.at]; {
		case c == ']':
			return el, false, p.fail(ErrSyntax, p.at+1, "a closing bracket without an opening one")
		case c < ' ' || c == 0x7f:
			return el, false, p.fail(ErrSyntax, p.at+1, "control character %#x in a host name", c)
		case c == '[':
			text := p.expr[start:p.at]
			ranges, err := p.brackets()
			if err != nil {
				return el, false, err
			}
			el.parts = append(el.parts, part{text, ranges})
			start = p.at
		default:
			p.at++
		}
	}
	el.literal = p.expr[start:p.at]
	if len(el.parts) > 0 && el.literal != "" {
		return el, false, p.fail(ErrSyntax, start+1, "text after the last bracket: %q; Slurm allows none", el.literal)
	}
	if len(el.parts) == 0 {
		if _, digits := splitNumber(el.literal); digits != "" {
			if _, err := strconv.ParseUint(digits, 10, 64); err != nil {
				return el, false, p.fail(ErrSyntax, p.at+1-len(digits), "number %s does not fit Slurm's 64 bits", digits)
			}
		}
	}
	return el, true, nil
}

// brackets reads from '[' to the ']' that closes it.
func (p *parser) brackets() ([]numberRange, error) {
	open := p.at + 1
	p.at++
	var ranges []numberRange
	var total uint64
	for {
		r, err := p.numberRange(open)
		if err != nil {
			return nil, err
		}
		if total += r.count(); r.count() > MaxRange || total > MaxRange {
			return nil, p.fail(ErrTooMany, open, "more than %d numbers in one pair of brackets", MaxRange)
		}
		ranges = append(ranges, r)
		c := p.expr[p.at] // numberRange stops only at ',' or ']'
		p.at++
		if c == ']' {
			return ranges, nil
		}
		// "[089, 100]" is what people write; a blank anywhere else is not.
		for p.at < len(p.expr) && p.expr[p.at] == ' ' {
			p.at++
		}
	}
}

// numberRange reads "3", "1-3" or, before the closing bracket, "1-", which Slurm
// takes as 1.
func (p *parser) numberRange(open int) (numberRange, error) {
	lo, width, err := p.number(open)
	if err != nil {
		return numberRange{}, err
	}
	r := numberRange{lo, lo, width}
	if p.expr[p.at] == '-' {
		p.at++
		if p.at < len(p.expr) && p.expr[p.at] == ']' {
			return r, nil
		}
		column := p.at + 1
		if r.hi, _, err = p.number(open); err != nil {
			return numberRange{}, err
		}
		if r.hi < r.lo {
			return numberRange{}, p.fail(ErrSyntax, column, "range goes down from %d to %d", r.lo, r.hi)
		}
		if r.hi-r.lo >= MaxRange {
			return numberRange{}, p.fail(ErrTooMany, column, "more than %d numbers in a range", MaxRange)
		}
	}
	if c := p.expr[p.at]; c != ',' && c != ']' {
		return numberRange{}, p.fail(ErrSyntax, p.at+1, "%q where a comma or a closing bracket belongs", c)
	}
	return r, nil
}

// number reads digits; at least one byte follows them when it returns no error.
func (p *parser) number(open int) (n uint64, width int, err error) {
	start := p.at
	for p.at < len(p.expr) && isDigit(p.expr[p.at]) {
		p.at++
	}
	digits := p.expr[start:p.at]
	if p.at == len(p.expr) {
		return 0, 0, p.fail(ErrSyntax, open, "bracket is not closed")
	}
	if digits == "" {
		return 0, 0, p.fail(ErrSyntax, p.at+1, "%q where a number belongs", p.expr[p.at])
	}
	n, err = strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, 0, p.fail(ErrSyntax, start+1, "number %s does not fit Slurm's 64 bits", digits)
	}
	return n, len(digits), nil
}
