package train

import (
	"bytes"
	"io"
	"strconv"
)

// isLIBSVM looks whether the first line that holds anything is a label
// followed by index:value pairs.
func isLIBSVM(head []byte) bool {
	for line := range bytes.Lines(head) {
		words := bytes.Fields(uncomment(line))
		if len(words) == 0 {
			continue
		}
		commas := bytes.IndexByte(words[0], ',') >= 0 // CSV's, or those of several labels
		if len(words) == 1 {
			if commas {
				return false
			}
			continue // a row without features, or something else: look on
		}
		index, value, pair := bytes.Cut(words[1], []byte(":"))
		_, err := strconv.Atoi(string(index))
		if err == nil && commas {
			_, err = parseFloat(value) // else this is CSV with a time of day
		}
		return pair && err == nil
	}
	return false
}

func uncomment(line []byte) []byte {
	if i := bytes.IndexByte(line, '#'); i >= 0 {
		line = line[:i]
	}
	return bytes.TrimSpace(line)
}

// readLIBSVM reads "label index:value ..." lines, indices ascending from 1.
func readLIBSVM(src *source) (*samples, error) {
	s := &samples{file: src.name, label: -1, words: interned{}}
	for number := 1; ; number++ {
		line, err := src.line()
		if err == io.EOF {
			break
		}
		bad := func(format string, args ...any) error {
			return badData(s.file, number, format, args...)
		}
		if err != nil {
			return nil, bad("%v", err)
		}
		rest := uncomment(line)
		if len(rest) == 0 {
			continue
		}
		word, rest := nextWord(rest)
		if bytes.IndexByte(word, ':') >= 0 {
			return nil, bad("the line begins with %q, where a label should stand", clip(word))
		}
		if bytes.IndexByte(word, ',') >= 0 {
			return nil, bad("label %q: a row has one label here", clip(word))
		}
		s.labels = append(s.labels, s.words.get(canonicalLabel(word)))
		s.lines = append(s.lines, number)
		last := 0
		for len(rest) > 0 {
			word, rest = nextWord(rest)
			left, right, pair := bytes.Cut(word, []byte(":"))
			if !pair {
				return nil, bad("%q is not index:value", clip(word))
			}
			index, err := strconv.ParseInt(string(left), 10, 32)
			if err != nil || index < 1 || index > maxFeatures {
				return nil, bad("index %q is not a number from 1 to %d", clip(left), maxFeatures)
			}
			if int(index) <= last {
				return nil, bad("index %d follows %d; indices must ascend", index, last)
			}
			v, err := parseFloat(right)
			if err != nil {
				return nil, bad("%q, the value of index %d, is not a finite number", clip(right), index)
			}
			last = int(index)
			s.cells = append(s.cells, cell{int32(index - 1), v})
		}
		s.features = max(s.features, last)
		s.ends = append(s.ends, len(s.cells))
	}
	if s.rows() == 0 {
		return nil, badData(s.file, 0, "no samples")
	}
	if s.features == 0 {
		return nil, badData(s.file, 0, "no row has a feature")
	}
	return s, nil
}

// maxFeatures bounds a LIBSVM index.
const maxFeatures = 1 << 24

func nextWord(b []byte) (word, rest []byte) {
	i := bytes.IndexAny(b, " \t")
	if i < 0 {
		return b, nil
	}
	return b[:i], bytes.TrimLeft(b[i:], " \t")
}
