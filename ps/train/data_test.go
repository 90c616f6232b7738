package train

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func gz(t *testing.T, data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zst(t *testing.T, data []byte) []byte {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(data, nil)
}

func idx(kind byte, dims []uint32, elements any) []byte {
	var b bytes.Buffer
	b.Write([]byte{0, 0, kind, byte(len(dims))})
	binary.Write(&b, binary.BigEndian, dims)
	binary.Write(&b, binary.BigEndian, elements)
	return b.Bytes()
}

func TestOptdigitsIsWhole(t *testing.T) {
	d, err := Open(Optdigits, 1)
	if err != nil {
		t.Fatal(err)
	}
	if d.Train.Rows() != 3823 || d.Test.Rows() != 1797 || d.Train.Features != 64 || len(d.Labels) != 10 {
		t.Fatalf("%d training and %d test rows of %d features, %d classes", d.Train.Rows(), d.Test.Rows(), d.Train.Features, len(d.Labels))
	}
	// The published class distribution of the test set.
	want := []int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}
	got := make([]int, 10)
	for _, y := range d.Test.Y {
		got[y]++
	}
	for c := range want {
		if got[c] != want[c] {
			t.Errorf("class %d: %d test rows, want %d", c, got[c], want[c])
		}
	}
	for _, v := range d.Train.X {
		if v < 0 || v > 1 {
			t.Fatalf("feature %v outside 0..1", v)
		}
	}
}

// The same six images in MNIST's four files, in each compression.
func TestIDXDirectory(t *testing.T) {
	pixels := []byte{0, 255, 51, 102, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
	images := idx(idxUint8, []uint32{6, 2, 2}, pixels)
	labels := idx(idxUint8, []uint32{6}, []byte{7, 9, 7, 7, 9, 7})
	pack := map[string]func(*testing.T, []byte) []byte{"": func(_ *testing.T, b []byte) []byte { return b }, ".gz": gz, ".zst": zst}
	for suffix, packed := range pack {
		dir := filepath.Join(t.TempDir(), "mni[s]t")
		write(t, filepath.Join(dir, "train-images-idx3-ubyte"+suffix), packed(t, images))
		write(t, filepath.Join(dir, "train-labels-idx1-ubyte"+suffix), packed(t, labels))
		write(t, filepath.Join(dir, "t10k-images.idx3-ubyte"+suffix), packed(t, images))
		if err := os.Mkdir(filepath.Join(dir, "t10k-images-idx3-ubyte"), 0o755); err != nil { // as some unpack an archive
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "t10k-labels.idx1-ubyte"+suffix), packed(t, labels))
		d, err := Open(dir, 1)
		if err != nil {
			t.Fatalf("%q: %v", suffix, err)
		}
		if d.Train.Rows() != 6 || d.Test.Rows() != 6 || d.Train.Features != 4 {
			t.Fatalf("%q: %d rows of %d", suffix, d.Train.Rows(), d.Train.Features)
		}
		if d.Train.X[1] != 1 || math.Abs(float64(d.Train.X[2])-0.2) > 1e-7 {
			t.Errorf("%q: pixels 255 and 51 became %v and %v", suffix, d.Train.X[1], d.Train.X[2])
		}
		if d.Labels[0] != "7" || d.Labels[1] != "9" || d.Train.Y[1] != 1 {
			t.Errorf("%q: labels %v, classes %v", suffix, d.Labels, d.Train.Y)
		}
	}
}

// A directory has one name, wherever it is looked at from: a checkpoint knows its data by that.
func TestDirectoryHasItsName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mine")
	write(t, filepath.Join(dir, "sub", "x"), nil)
	write(t, filepath.Join(dir, "train.csv"), []byte("1,0\n2,1\n"))
	write(t, filepath.Join(dir, "test.csv"), []byte("1,0\n"))
	t.Chdir(filepath.Join(dir, "sub"))
	for _, path := range []string{dir, "..", "../../mine/"} {
		if d, err := Open(path, 1); err != nil || d.Name != "mine" {
			t.Errorf("%s: %+v, %v", path, d, err)
		}
	}
}

// What breaks a compressed file is said as it is, and not taken for the length of its content.
func TestIDXBrokenCompression(t *testing.T) {
	whole := gz(t, idx(idxUint8, []uint32{4, 2}, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
	for at, want := range map[int]string{
		len(whole) - 8: "after all 8 elements: gzip: invalid checksum",
		10:             "flate: corrupt input",
	} {
		broken := bytes.Clone(whole)
		broken[at] ^= 0xff
		_, err := Open(write(t, filepath.Join(t.TempDir(), "images.gz"), broken), 1)
		if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), want) {
			t.Errorf("byte %d: %v, want %q", at, err, want)
		}
	}
	_, err := Open(write(t, filepath.Join(t.TempDir(), "images.gz"), whole[:len(whole)-4]), 1)
	if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), "after all 8 elements: unexpected EOF") {
		t.Errorf("cut: %v", err)
	}
}

func TestIDXElementTypes(t *testing.T) {
	for kind, elements := range map[byte]any{
		idxInt8:    []int8{-1, 2},
		idxInt16:   []int16{-1, 2},
		idxInt32:   []int32{-1, 2},
		idxFloat32: []float32{-1, 2},
		idxFloat64: []float64{-1, 2},
	} {
		src, err := decompress(bytes.NewReader(idx(kind, []uint32{2, 1}, elements)), "x")
		if err != nil {
			t.Fatal(err)
		}
		_, _, x, err := readIDX[float32](src)
		if err != nil || len(x) != 2 || x[0] != -1 || x[1] != 2 {
			t.Errorf("type %#x: %v %v", kind, x, err)
		}
	}
}

// Labels of four bytes are as many classes as there are different ones, also where a float32 cannot tell them apart.
func TestIDXLongLabels(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "train-images-idx3-ubyte"), idx(idxUint8, []uint32{4, 1, 2}, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
	write(t, filepath.Join(dir, "train-labels-idx1-int"), idx(idxInt32, []uint32{4}, []int32{20000000, 20000001, -20000001, 1000000}))
	write(t, filepath.Join(dir, "t10k-images-idx3-ubyte"), idx(idxUint8, []uint32{1, 1, 2}, []byte{1, 2}))
	write(t, filepath.Join(dir, "t10k-labels-idx1-float"), idx(idxFloat32, []uint32{1}, []float32{1e6}))
	d, err := Open(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"-20000001", "1000000", "20000000", "20000001"}; !slices.Equal(d.Labels, want) || !slices.Equal(d.Train.Y, []int32{2, 3, 0, 1}) || d.Test.Y[0] != 1 {
		t.Errorf("labels %v, want %v; classes %v and %v", d.Labels, want, d.Train.Y, d.Test.Y)
	}
}

func TestCSVWithHeaderAndWords(t *testing.T) {
	dir := t.TempDir()
	train := write(t, filepath.Join(dir, "iris.train.csv"), []byte("class,a,\"b\"\r\nsetosa,1,-4\r\n\nvirginica, 2 ,2e0\n\"setosa\",0.5,1\n"))
	write(t, filepath.Join(dir, "iris.test.csv.gz"), gz(t, []byte("class,a,b\nvirginica,4,4\n")))
	d, err := Open(train, 1)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != "iris.train.csv" || d.Train.Rows() != 3 || d.Test.Rows() != 1 || d.Train.Features != 2 {
		t.Fatalf("%q: %d and %d rows of %d", d.Name, d.Train.Rows(), d.Test.Rows(), d.Train.Features)
	}
	// Columns are scaled by the training rows' largest magnitudes, 2 and 4.
	for i, want := range []float32{0.5, -1, 1, 0.5, 0.25, 0.25} {
		if d.Train.X[i] != want {
			t.Errorf("element %d is %v, want %v", i, d.Train.X[i], want)
		}
	}
	if d.Test.X[0] != 2 || d.Test.X[1] != 1 || d.Test.Y[0] != 1 || d.Labels[1] != "virginica" {
		t.Errorf("test %v %v, labels %v", d.Test.X, d.Test.Y, d.Labels)
	}
}

// What marks a text as UTF-8 belongs neither to the first label nor to the first column's name.
func TestByteOrderMark(t *testing.T) {
	pack := map[string]func(*testing.T, []byte) []byte{"": func(_ *testing.T, b []byte) []byte { return b }, ".gz": gz}
	for name, text := range map[string]string{
		"header.csv": "label,a,b\n1,2,3\n0,4,5\n",
		"plain.csv":  "2,3,1\n4,5,0\n",
		"rows.svm":   "1 1:2 2:3\n0 1:4 2:5\n",
	} {
		for suffix, packed := range pack {
			dir := t.TempDir()
			write(t, filepath.Join(dir, name+".t"), []byte(text))
			d, err := Open(write(t, filepath.Join(dir, name+suffix), packed(t, []byte("\ufeff"+text))), 1)
			if err != nil {
				t.Errorf("%s%s: %v", name, suffix, err)
				continue
			}
			if !slices.Equal(d.Labels, []string{"0", "1"}) || !slices.Equal(d.Train.Y, []int32{1, 0}) || !slices.Equal(d.Train.X, d.Test.X) {
				t.Errorf("%s%s: classes %q, %v of %v", name, suffix, d.Labels, d.Train.Y, d.Train.X)
			}
		}
	}
}

// Columns may be numbered, as pandas does; a single word on the first line is a label otherwise.
func TestHeaderWithNumberedColumns(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		labels []string
		x      []float32 // scaled
	}{
		"label last":   {"0,1,label\n2,4,a\n1,2,b\n", []string{"a", "b"}, []float32{1, 1, 0.5, 0.5}},
		"quoted":       {"\"0\",\"1\",\"Target\"\n2,4,a\n1,2,b\n", []string{"a", "b"}, []float32{1, 1, 0.5, 0.5}},
		"label first":  {"class,0,1\na,2,4\nb,1,2\n", []string{"a", "b"}, []float32{1, 1, 0.5, 0.5}},
		"no header":    {"2,4,a\n1,2,b\n", []string{"a", "b"}, []float32{1, 1, 0.5, 0.5}},
		"a label of y": {"2,4,y\n1,2,n\n", []string{"n", "y"}, []float32{1, 1, 0.5, 0.5}},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "d.csv.t"), []byte(c.text))
		d, err := Open(write(t, filepath.Join(dir, "d.csv"), []byte(c.text)), 1)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(d.Labels, c.labels) || !slices.Equal(d.Train.X, c.x) {
			t.Errorf("%s: classes %q, features %v", name, d.Labels, d.Train.X)
		}
	}
}

func TestHoldOutIsSeeded(t *testing.T) {
	var rows strings.Builder
	for i := range 100 {
		fmt.Fprintf(&rows, "%d,1,%d\n", i, i%2)
	}
	path := write(t, filepath.Join(t.TempDir(), "plain.csv"), []byte(rows.String()))
	a, err := Open(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Open(path, 1)
	c, _ := Open(path, 2)
	if a.Train.Rows() != 80 || a.Test.Rows() != 20 {
		t.Fatalf("%d and %d rows", a.Train.Rows(), a.Test.Rows())
	}
	if !slices.Equal(a.Test.X, b.Test.X) {
		t.Error("the same seed sets other rows aside")
	}
	if slices.Equal(a.Test.X, c.Test.X) {
		t.Error("another seed sets the same rows aside")
	}
}

func TestLIBSVMAdult(t *testing.T) {
	d, err := Open(filepath.Join("testdata", "a9a.zst"), 1)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != "a9a" || d.Train.Rows() != 6000 || d.Test.Rows() != 2000 || d.Train.Features != 122 || len(d.Labels) != 2 {
		t.Fatalf("%s: %d and %d rows of %d, labels %v", d.Name, d.Train.Rows(), d.Test.Rows(), d.Train.Features, d.Labels)
	}
	// First row: 3:1 11:1 14:1 19:1 39:1 42:1 55:1 64:1 67:1 73:1 75:1 76:1 80:1 83:1
	set := map[int]bool{3: true, 11: true, 14: true, 19: true, 39: true, 42: true, 55: true, 64: true, 67: true, 73: true, 75: true, 76: true, 80: true, 83: true}
	for c, v := range d.Train.Row(0) {
		if (v == 1) != set[c+1] {
			t.Errorf("feature %d is %v", c+1, v)
		}
	}
}

func TestBadDataNamesFileAndLine(t *testing.T) {
	images := idx(idxUint8, []uint32{2, 1}, []byte{1, 2})
	for _, c := range []struct {
		name    string
		content []byte
		want    []string
	}{
		{"empty.csv", nil, []string{"empty.csv: ", "empty"}},
		{"words.csv", []byte("1,2,0\n1,x,0\n"), []string{"words.csv:2: ", `"x" in column 2`}},
		{"nan.csv", []byte("1,2,0\n1,NaN,0\n"), []string{"nan.csv:2: ", "NaN"}},
		{"ragged.csv", []byte("1,2,0\n\n1,2,3,0\n"), []string{"ragged.csv:3: ", "4 columns", "first line has 3"}},
		{"nolabel.csv", []byte("1,2,0\n1,2,\n"), []string{"nolabel.csv:2: ", "no label"}},
		{"one.csv", []byte("1,2,0\n1,3,0\n1,4,0\n1,5,0\n1,6,0\n"), []string{"one.csv: ", `label "0"`, "two classes"}},
		{"text", []byte("hello\n"), []string{"text:1: ", "neither IDX nor CSV"}},
		{"order.svm", []byte("1 2:1 5:1\n0 5:1 2:1\n"), []string{"order.svm:2: ", "index 2 follows 5"}},
		{"zero.svm", []byte("1 2:1\n0 0:1\n"), []string{"zero.svm:2: ", `index "0"`, "from 1"}},
		{"pair.svm", []byte("1 2:1\n0 3\n"), []string{"pair.svm:2: ", `"3" is not index:value`}},
		{"value.svm", []byte("1 2:1\n0 3:inf\n"), []string{"value.svm:2: ", `"inf"`, "index 3"}},
		{"label.svm", []byte("1 2:1\n2:1 3:1\n"), []string{"label.svm:2: ", "label"}},
		{"images", images, []string{"images: ", "labels"}},
		{"cut", images[:len(images)-1], []string{"cut: ", "promises", "ends after 1"}},
		{"long", append(bytes.Clone(images), 0), []string{"long: ", "bytes follow"}},
		{"huge", idx(idxUint8, []uint32{1 << 16, 1 << 16, math.MaxUint32}, []byte{}), []string{"huge: ", "IDX dimension 4294967295"}},
		{"broken.gz", []byte{0x1f, 0x8b, 1, 2, 3}, []string{"broken.gz: ", "gzip"}},
	} {
		path := write(t, filepath.Join(t.TempDir(), c.name), c.content)
		_, err := Open(path, 1)
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		var where *DataError
		if !errors.As(err, &where) || !errors.Is(err, ErrData) {
			t.Errorf("%s: %T is no DataError", c.name, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", c.name, err, want)
			}
		}
	}
}

// A matrix has no more columns than its file gives it, whatever form the other file has.
func TestFilesOfDifferentWidth(t *testing.T) {
	for _, c := range []struct{ train, test, wrong string }{
		{"1,2,0\n3,4,1\n", "0 3:1\n", "d: 2 features, but "},
		{"0 3:1\n1 1:1\n", "1,2,0\n", "d.t: 2 features, but "},
		{"1,2,0\n3,4,1\n", "1,2,3,0\n", "d.t: 3 features, but "},
		{"1,2,0\n3,4,1\n", "0 1:1\n", ""},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "d.t"), []byte(c.test))
		d, err := Open(write(t, filepath.Join(dir, "d"), []byte(c.train)), 1)
		switch {
		case c.wrong == "" && (err != nil || len(d.Test.X) != d.Train.Features):
			t.Errorf("%q and %q: %v", c.train, c.test, err)
		case c.wrong != "" && (!errors.Is(err, ErrData) || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%q and %q: %v, want %q", c.train, c.test, err, c.wrong)
		}
	}
}

// A column of zeros, or of numbers whose inverse is none any more, is not scaled.
func TestScaleIsFinite(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "d.t"), []byte("0,1e-40,1,0\n"))
	d, err := Open(write(t, filepath.Join(dir, "d"), []byte("0,1e-40,1,0\n0,-1e-39,2,1\n")), 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := []float32{1, 1, 0.5}; !slices.Equal(d.Scale, want) {
		t.Errorf("scaled by %v, want %v", d.Scale, want)
	}
}

func TestUnknownTestLabel(t *testing.T) {
	dir := t.TempDir()
	train := write(t, filepath.Join(dir, "d"), []byte("+1 1:1\n-1 2:1\n"))
	write(t, filepath.Join(dir, "d.t"), []byte("1.0 1:1\n# nothing here\n3 9:1\n"))
	_, err := Open(train, 1)
	if err == nil || !strings.Contains(err.Error(), `d.t:3: label "3" does not occur`) {
		t.Fatalf("%v", err)
	}
}

func TestMissingPath(t *testing.T) {
	_, err := Open("nowhere", 1)
	if err == nil || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), `"nowhere" is neither "optdigits"`) {
		t.Fatalf("%v", err)
	}
	_, err = Open(t.TempDir(), 1)
	if err == nil || !strings.Contains(err.Error(), "train.csv") {
		t.Fatalf("%v", err)
	}
}

func FuzzReadSamples(f *testing.F) {
	f.Add([]byte("1,2,0\n3,4,1\n"))
	f.Add([]byte("label,a\nx,1\n"))
	f.Add([]byte("+1 1:0.5 7:2\n-1 3:1 # c\n"))
	f.Add(idx(idxUint8, []uint32{2, 1}, []byte{1, 2}))
	f.Add(idx(idxFloat64, []uint32{1, 1}, []float64{2}))
	f.Add([]byte{0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		src, err := decompress(bytes.NewReader(data), "fuzz")
		if err != nil {
			return
		}
		defer src.Close()
		s, err := readSamples(src)
		if err != nil {
			if !errors.Is(err, ErrData) {
				t.Fatalf("%v is no ErrData", err)
			}
			return
		}
		if s.labels == nil {
			return
		}
		if s.x != nil && len(s.x) != s.rows()*s.features {
			t.Fatalf("%d numbers for %d rows of %d", len(s.x), s.rows(), s.features)
		}
		for i, c := range s.cells {
			if int(c.column) >= s.features {
				t.Fatalf("cell %d in column %d of %d", i, c.column, s.features)
			}
		}
	})
}

// A class all of whose rows are set aside for testing is one all the same.
func TestRareClassSetAside(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "d.csv"), []byte("1,a\n2,b\n3,a\n4,b\n5,a\n6,b\n7,a\n8,b\n9,rare\n"))
	aside := 0
	for seed := range uint64(50) {
		d, err := Open(path, seed)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(d.Labels) != 3 {
			t.Fatalf("seed %d: classes %q", seed, d.Labels)
		}
		if slices.Contains(d.Test.Y, 2) {
			aside++
		}
	}
	if aside == 0 {
		t.Error("the rare class was never set aside")
	}
}

// "nan" is a word: as a number it would have no place in the order, and ranks would number classes differently.
func TestClassNamesAreInOneOrder(t *testing.T) {
	for range 100 {
		if got := classNames([]string{"2", "nan", "10", "1", "NaN"}); !slices.Equal(got, []string{"1", "10", "2", "NaN", "nan"}) {
			t.Fatalf("%q", got)
		}
	}
}
