package train

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
)

// samples is the content of one file before classes are numbered: a dense
// matrix, or rows of (column, value) whose width is only known once the test
// file is read.
type samples struct {
	file     string
	features int
	x        []float32 // dense, nil when sparse
	cells    []cell    // sparse
	ends     []int     // sparse: end of each row in cells
	labels   []string  // nil for IDX images
	label    int       // column of the label, from 0; -1 where it has none of its own
	lines    []int     // line of each row, nil for IDX
	pixel    bool      // one scale for all features
	words    interned  // label texts, each stored once
}

type cell struct {
	column int32
	value  float32
}

type interned map[string]string

func (t interned) get(b []byte) string {
	if s, ok := t[string(b)]; ok {
		return s
	}
	s := string(b)
	t[s] = s
	return s
}

func (s *samples) rows() int { return len(s.labels) }

func (s *samples) line(row int) int {
	if s.lines == nil {
		return 0
	}
	return s.lines[row]
}

// densify turns sparse rows into a matrix of the given width.
func (s *samples) densify(features int) error {
	if s.x != nil {
		return nil
	}
	sizeBytes := float64(s.rows()) * float64(features) * 4
	if sizeBytes > maxDenseBytes {
		return badData(s.file, 0, "%d rows x %d features are %.1f GiB as a dense matrix; the limit is %d GiB",
			s.rows(), features, sizeBytes/(1<<30), maxDenseBytes>>30)
	}
	s.x = make([]float32, s.rows()*features)
	s.features = features
	begin := 0
	for r, end := range s.ends {
		for _, c := range s.cells[begin:end] {
			s.x[r*features+int(c.column)] = c.value
		}
		begin = end
	}
	s.cells, s.ends = nil, nil
	return nil
}

// hold sets a fifth of the rows aside for testing.
func (s *samples) hold(seed uint64) (rest, held *samples) {
	order := rand.New(rand.NewPCG(seed, 0x401d)).Perm(s.rows())
	n := int(math.Round(holdOut * float64(s.rows())))
	slices.Sort(order[:n])
	slices.Sort(order[n:])
	return s.pick(order[n:]), s.pick(order[:n])
}

func (s *samples) pick(rows []int) *samples {
	p := &samples{file: s.file, features: s.features, label: s.label, pixel: s.pixel}
	for _, r := range rows {
		if s.x != nil {
			p.x = append(p.x, s.x[r*s.features:(r+1)*s.features]...)
		} else {
			begin := 0
			if r > 0 {
				begin = s.ends[r-1]
			}
			p.cells = append(p.cells, s.cells[begin:s.ends[r]]...)
			p.ends = append(p.ends, len(p.cells))
		}
		p.labels = append(p.labels, s.labels[r])
		if s.lines != nil {
			p.lines = append(p.lines, s.lines[r])
		}
	}
	return p
}

// readFile reads one file in whichever form it has.
func readFile(path string) (*samples, error) {
	src, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	return readSamples(src)
}

// byteOrderMark is what some programs begin text in UTF-8 with.
var byteOrderMark = []byte{0xef, 0xbb, 0xbf}

func readSamples(src *source) (*samples, error) {
	head, err := src.Peek(4096)
	if len(head) == 0 {
		if err == nil || err == io.EOF {
			return nil, badData(src.name, 0, "the file is empty")
		}
		return nil, badData(src.name, 0, "%v", err)
	}
	if isIDX(head) {
		return readIDXImages(src)
	}
	if text, marked := bytes.CutPrefix(head, byteOrderMark); marked { // else it would be part of the first label or name
		head = text
		src.Discard(len(byteOrderMark)) // which are there
	}
	switch {
	case isLIBSVM(head):
		return readLIBSVM(src)
	default:
		return readCSV(src)
	}
}

// canonicalLabel makes +1, 1.0 and 1 the same class. 1_1 and 11 stay two classes, though Go would read the same
// number.
func canonicalLabel(b []byte) []byte {
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || bytes.IndexByte(b, '_') >= 0 || v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return b
	}
	return strconv.AppendInt(nil, int64(v), 10)
}
