package train

import (
	"bytes"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// readCSV reads lines of numbers separated by commas, one of which is the
// label. Numbers and labels contain neither quotes nor commas, so a line is
// split without a quoting grammar; quotes around a field are dropped.
func readCSV(src *source) (*samples, error) {
	s := &samples{file: src.name, label: -1, words: interned{}}
	columns := 0
	hint := "; a header would have no number, or a column called " + strings.Join(labelNames[:len(labelNames)-1], ", ")
	var fields [][]byte
	for number := 1; ; number++ {
		line, err := src.line()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, badData(s.file, number, "%v", err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		fields = splitFields(line, fields[:0])
		if columns == 0 {
			columns = len(fields)
			if columns < 2 {
				return nil, badData(s.file, number, "%q is neither IDX nor CSV (numbers and a label, separated by commas) nor LIBSVM (label index:value ...)", clip(line))
			}
			if countsColumns(fields) {
				return nil, badData(s.file, number, "the line counts its columns from 0: name the label's column, or remove the line")
			}
			s.label = columns - 1
			if at, header := headerLabel(fields); header {
				s.label, hint = at, ""
				continue
			}
		}
		if len(fields) != columns {
			return nil, badData(s.file, number, "%d columns, but the first line has %d", len(fields), columns)
		}
		for c, f := range fields {
			if c == s.label {
				if len(f) == 0 {
					return nil, badData(s.file, number, "no label in column %d", c+1)
				}
				s.labels = append(s.labels, s.words.get(canonicalLabel(f)))
				continue
			}
			v, err := parseFloat(f)
			if err != nil {
				return nil, badData(s.file, number, "%q in column %d is not a finite number%s", clip(f), c+1, hint)
			}
			s.x = append(s.x, v)
		}
		s.lines = append(s.lines, number)
		hint = "" // the hint is for the first line only
	}
	s.features = columns - 1
	if s.rows() == 0 {
		return nil, badData(s.file, 0, "no samples")
	}
	return s, nil
}

func splitFields(line []byte, fields [][]byte) [][]byte {
	for {
		i := bytes.IndexByte(line, ',')
		f := line
		if i >= 0 {
			f = line[:i]
		}
		f = bytes.TrimSpace(f)
		if n := len(f); n >= 2 && f[0] == '"' && f[n-1] == '"' {
			f = f[1 : n-1]
		}
		fields = append(fields, f)
		if i < 0 {
			return fields
		}
		line = line[i+1:]
	}
}

// labelNames are what a header may call the label's column.
var labelNames = []string{"label", "class", "target", "y"} // the last only beside other names

// headerLabel tells whether the first line names columns, and which of them is the label. A line with one of
// labelNames is a header, even if other columns are named by numbers (pandas writes 0,1,...,label). But a y beside
// numbers is a label called y. A line without such a name is a header only if it has no number at all: else a
// mistake in the first row would lose that row without a word.
func headerLabel(fields [][]byte) (column int, header bool) {
	words, named := 0, -1
	for c, f := range fields {
		if _, err := parseFloat(f); err != nil {
			words++
		}
		if named < 0 && slices.Contains(labelNames, strings.ToLower(string(f))) {
			named = c
		}
	}
	switch {
	case named < 0:
		return len(fields) - 1, words == len(fields)
	case words < len(fields) && strings.EqualFold(string(fields[named]), "y"):
		return 0, false
	}
	return named, true
}

// countsColumns reports whether the first line is the header that pandas writes for columns without names
// (0,1,2,...): it would be taken for a sample.
func countsColumns(fields [][]byte) bool {
	for c, f := range fields {
		if string(f) != strconv.Itoa(c) {
			return false
		}
	}
	const few = 4 // a sample of so few columns may look like that
	return len(fields) > few
}

// parseFloat reads a finite number.
func parseFloat(b []byte) (float32, error) {
	if len(b) == 0 || bytes.IndexByte(b, '_') >= 0 { // which Go would take for a separator of digits
		return 0, strconv.ErrSyntax
	}
	if len(b) <= 5 {
		if v, ok := smallInt(b); ok {
			return v, nil
		}
	}
	// The string does not outlive the call.
	v, err := strconv.ParseFloat(unsafe.String(&b[0], len(b)), 32)
	if err != nil {
		return 0, err
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, strconv.ErrRange
	}
	return float32(v), nil
}

// smallInt is the fast path for pixels and counts.
func smallInt(b []byte) (float32, bool) {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return float32(n), true
}

// clip shortens what an error quotes.
func clip(b []byte) string {
	if len(b) > 40 {
		return string(b[:40]) + "..."
	}
	return string(b)
}
