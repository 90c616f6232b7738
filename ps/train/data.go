package train

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// ErrData is what every complaint about the content of a data file wraps.
var ErrData = errors.New("bad data")

// DataError says where in which file something is wrong.
type DataError struct {
	File   string
	Line   int // from 1; 0 where the file has no lines
	Detail string
}

// badData is a DataError; line is 0 where the file has no lines.
func badData(file string, line int, format string, args ...any) error {
	return &DataError{file, line, fmt.Sprintf(format, args...)}
}

func (e *DataError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("train: %s:%d: %s", e.File, e.Line, e.Detail)
	}
	return fmt.Sprintf("train: %s: %s", e.File, e.Detail)
}

func (e *DataError) Unwrap() error { return ErrData }

// Split is one part of a data set: Rows samples of Features numbers each.
type Split struct {
	Features int
	X        []float32 // rows x features, row-major, scaled
	Y        []int32   // class of each row, an index into Dataset.Labels
}

// Rows is the number of samples.
func (s *Split) Rows() int { return len(s.Y) }

// Row is a view of sample i.
func (s *Split) Row(i int) []float32 { return s.X[i*s.Features : (i+1)*s.Features] }

// Select copies the given rows into a split of their own, so that a worker
// need keep only its shard in memory.
func (s *Split) Select(rows []int) Split {
	out := Split{Features: s.Features, X: make([]float32, 0, len(rows)*s.Features), Y: make([]int32, 0, len(rows))}
	for _, r := range rows {
		out.X = append(out.X, s.Row(r)...)
		out.Y = append(out.Y, s.Y[r])
	}
	return out
}

// Dataset is a classification problem in memory.
type Dataset struct {
	Name   string // as text: bytes of the file's name that are no UTF-8 are replaced
	Train  Split
	Test   Split
	Labels []string  // name of each class
	Scale  []float32 // what each feature of the file was multiplied by
}

// Optdigits is the name of the data set that is part of the program.
const Optdigits = "optdigits"

// holdOut is the share of rows set aside for testing when a data set comes
// without a test file.
const holdOut = 0.2

// maxDenseBytes bounds the dense matrix of a file whose own size does not bound it: LIBSVM leaves out zeros, and a
// header of IDX may claim anything.
const maxDenseBytes = 16 << 30

// Open reads a data set: the built-in "optdigits", a directory with the four
// files of MNIST or with train.* and test.*, or one training file in CSV or
// LIBSVM form (IDX has its labels in a file of their own). What a file is, and whether it is compressed (gzip, zstd),
// is told by its content.
//
// The test file of FILE is FILE.t (LIBSVM's custom), FILE with "train"
// replaced by "test", or with .tra by .tes; compression suffixes may differ.
// Without one, a fifth of the rows, chosen by seed, is set aside.
//
// CSV: numbers separated by commas; the label is the last column, or the one
// that the header line calls label, class, target or y. LIBSVM: label
// index:value ..., indices ascending from 1. Labels may be words; classes
// are numbered in numeric, else alphabetic order. Pixels (IDX) are scaled as a
// whole to 0..1, other features column by column to a largest magnitude of 1.
func Open(path string, seed uint64) (*Dataset, error) {
	if path == Optdigits {
		return openOptdigits()
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("train: data set %q is neither %q nor a file: %w", path, Optdigits, err)
	}
	if info.IsDir() {
		return openDir(path, seed)
	}
	train, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if train.labels == nil {
		return nil, badData(path, 0, "IDX images need their labels: give the directory that holds both files")
	}
	name := trimCompression(filepath.Base(path))
	testPath, found := testFile(path)
	if !found {
		rest, held := train.hold(seed)
		return assemble(name, rest, held)
	}
	test, err := readFile(testPath)
	if err != nil {
		return nil, err
	}
	return assemble(name, train, test)
}

// textName is a file's name as text that JSON (in checkpoints) and XML (in curves) can hold, so that it is read
// back as it was written.
func textName(name string) string { return strings.ToValidUTF8(name, "\ufffd") }

func openDir(dir string, seed uint64) (*Dataset, error) {
	whole, err := filepath.Abs(dir) // "." is no name
	if err != nil {
		return nil, fmt.Errorf("train: data set %q: %w", dir, err)
	}
	name := filepath.Base(whole)
	if train, found, err := readIDXPair(dir, "train"); err != nil {
		return nil, err
	} else if found {
		test, found, err := readIDXPair(dir, "t10k")
		if err == nil && !found {
			test, found, err = readIDXPair(dir, "test")
		}
		if err != nil {
			return nil, err
		}
		if !found {
			rest, held := train.hold(seed)
			return assemble(name, rest, held)
		}
		return assemble(name, train, test)
	}
	for _, form := range []string{"csv", "libsvm", "svm", "txt"} {
		if path, ok := withCompression(filepath.Join(dir, "train."+form)); ok {
			set, err := Open(path, seed)
			if err != nil {
				return nil, err
			}
			set.Name = textName(name)
			return set, nil
		}
	}
	return nil, badData(dir, 0, "no train-images-idx3-ubyte, train.csv, train.libsvm, train.svm or train.txt in this directory (each may end in .gz or .zst)")
}

// compressions are the suffixes a data file may carry.
var compressions = []string{"", ".gz", ".zst"}

func trimCompression(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
}

func withCompression(path string) (string, bool) {
	for _, c := range compressions {
		if info, err := os.Stat(path + c); err == nil && info.Mode().IsRegular() {
			return path + c, true
		}
	}
	return "", false
}

func testFile(path string) (string, bool) {
	plain := trimCompression(path)
	dir, base := filepath.Split(plain)
	candidates := []string{plain + ".t"}
	if i := strings.LastIndex(base, "train"); i >= 0 {
		candidates = append(candidates, dir+base[:i]+"test"+base[i+len("train"):])
	}
	if stem, ok := strings.CutSuffix(plain, ".tra"); ok {
		candidates = append(candidates, stem+".tes")
	}
	for _, c := range candidates {
		if found, ok := withCompression(c); ok {
			return found, true
		}
	}
	return "", false
}

// assemble numbers the classes by the training file, gives both matrices the
// same width and scales both by what the training rows need.
func assemble(name string, train, test *samples) (*Dataset, error) {
	both := [2]*samples{train, test}
	for _, s := range both {
		if s.rows() == 0 {
			return nil, badData(s.file, 0, "no samples left for %s", map[bool]string{true: "training", false: "testing"}[s == train])
		}
	}
	width := train.features
	if train.x == nil || test.x == nil { // sparse rows are as wide as needed
		width = max(train.features, test.features)
	}
	if train.x != nil && test.x != nil && test.label >= 0 && train.label != test.label && test.features == width-1 {
		return nil, badData(test.file, 0, "%d columns, one less than in %s, and the label (there column %d) seems to be what lacks; "+
			"a model cannot be tested without: with this file elsewhere or under another name, a fifth of %s is set aside for that",
			test.features+1, train.file, train.label+1, train.file)
	}
	for i, s := range both {
		if s.x != nil && s.features != width {
			return nil, badData(s.file, 0, "%d features, but %s has %d", s.features, both[1-i].file, width)
		}
		if err := s.densify(width); err != nil {
			return nil, err
		}
	}
	if train.label >= 0 && test.label >= 0 && train.label != test.label {
		return nil, badData(test.file, 0, "the label is in column %d, but in column %d of %s (the last, unless a header line calls another one %s)",
			test.label+1, train.label+1, train.file, strings.Join(labelNames, ", "))
	}
	d := &Dataset{Name: textName(name)}
	d.Labels = classNames(train.labels)
	if test.file == train.file { // the rows set aside may be all rows of a class
		d.Labels = classNames(slices.Concat(train.labels, test.labels))
	}
	if len(d.Labels) < 2 {
		return nil, badData(train.file, 0, "every row has the label %q; at least two classes are needed", train.labels[0])
	}
	if len(d.Labels) > maxClasses {
		return nil, badData(train.file, train.line(0), "%d different labels (the first is %q); more than %d classes look like measurements, not classes",
			len(d.Labels), train.labels[0], maxClasses)
	}
	number := make(map[string]int32, len(d.Labels))
	for i, l := range d.Labels {
		number[l] = int32(i)
	}
	for _, part := range []struct {
		from *samples
		to   *Split
	}{{train, &d.Train}, {test, &d.Test}} {
		*part.to = Split{Features: width, X: part.from.x, Y: make([]int32, part.from.rows())}
		for r, l := range part.from.labels {
			c, ok := number[l]
			if !ok {
				return nil, badData(part.from.file, part.from.line(r), "label %q does not occur in %s", l, train.file)
			}
			part.to.Y[r] = c
		}
	}
	d.Scale = scales(&d.Train, train.pixel)
	d.Train.scale(d.Scale)
	d.Test.scale(d.Scale)
	return d, nil
}

// rows tells the training set from another of the same name, also once its features are gone (newWorker): how many
// rows it has, and a checksum of their classes and of what the features were multiplied by.
func (d *Dataset) rows() string {
	sum := crc32.Update(crc32.ChecksumIEEE(mpi.Bytes(d.Train.Y)), crc32.IEEETable, mpi.Bytes(d.Scale))
	return fmt.Sprintf("%d, CRC-32 %08x", d.Train.Rows(), sum)
}

// maxClasses bounds the output layer; a data set with more distinct labels is
// a regression problem read by mistake.
const maxClasses = 10000

// classNames lists the distinct labels, in numeric order if all are numbers.
func classNames(labels []string) []string {
	seen := map[string]bool{}
	for _, l := range labels {
		seen[l] = true
	}
	names := make([]string, 0, len(seen))
	numeric := true
	for l := range seen {
		names = append(names, l)
		if v, err := strconv.ParseFloat(l, 64); err != nil || math.IsNaN(v) {
			numeric = false
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if numeric {
			x, _ := strconv.ParseFloat(a, 64)
			y, _ := strconv.ParseFloat(b, 64)
			if x != y {
				return map[bool]int{true: -1, false: 1}[x < y]
			}
		}
		return strings.Compare(a, b)
	})
	return names
}

// scales are the factors that bring the largest magnitude to 1. Where that is zero, or so small that its factor
// would be infinite, the factor is 1.
func scales(s *Split, whole bool) []float32 {
	largest := make([]float32, s.Features)
	var all float32
	for r := range s.Rows() {
		for c, v := range s.Row(r) {
			largest[c] = max(largest[c], float32(math.Abs(float64(v))))
			all = max(all, largest[c])
		}
	}
	for c, m := range largest {
		if whole {
			m = all
		}
		largest[c] = 1 / m
		if math.IsInf(float64(largest[c]), 0) {
			largest[c] = 1
		}
	}
	return largest
}

func (s *Split) scale(by []float32) {
	for r := range s.Rows() {
		row := s.Row(r)
		for c := range row {
			row[c] *= by[c]
		}
	}
}
