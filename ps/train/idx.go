package train

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
)

// IDX is MNIST's format: two zero bytes, an element type, the number of
// dimensions, each dimension as a big-endian uint32, then the elements.
const (
	idxUint8   = 0x08
	idxInt8    = 0x09
	idxInt16   = 0x0b
	idxInt32   = 0x0c
	idxFloat32 = 0x0d
	idxFloat64 = 0x0e
)

var idxSize = map[byte]int{idxUint8: 1, idxInt8: 1, idxInt16: 2, idxInt32: 4, idxFloat32: 4, idxFloat64: 8}

func isIDX(head []byte) bool {
	return len(head) >= 4 && head[0] == 0 && head[1] == 0 && idxSize[head[2]] > 0 && head[3] >= 1 && head[3] <= 4
}

// readIDX reads a whole IDX file as numbers. In a float32 not every int32 has a value of its own, as labels must.
func readIDX[F float32 | float64](src *source) (dims []int, kind byte, x []F, err error) {
	bad := func(format string, args ...any) ([]int, byte, []F, error) {
		return nil, 0, nil, badData(src.name, 0, format, args...)
	}
	var head [4]byte
	if _, err := io.ReadFull(src, head[:]); err != nil {
		return bad("IDX header: %v", err)
	}
	if !isIDX(head[:]) {
		return bad("% x is not the header of an IDX file of 1 to 4 dimensions", head[:])
	}
	kind = head[2]
	total := 1
	for range head[3] {
		var d uint32
		if err := binary.Read(src, binary.BigEndian, &d); err != nil {
			return bad("IDX dimensions: %v", err)
		}
		if d == 0 || int64(d) > maxDenseBytes/4/int64(total) {
			return bad("IDX dimension %d after %v: between 1 and %d elements in all are possible", d, dims, maxDenseBytes/4)
		}
		dims = append(dims, int(d))
		total *= int(d)
	}
	// The header may lie: memory grows with what is really there.
	size := idxSize[kind]
	chunk := make([]byte, 1<<16)
	for len(x) < total {
		want := min(len(chunk), (total-len(x))*size)
		n, err := io.ReadFull(src, chunk[:want])
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return bad("the header promises %v = %d elements, the file ends after %d", dims, total, len(x)+n/size)
		case err != nil:
			return bad("after %d of %d elements: %v", len(x)+n/size, total, err)
		}
		for b := chunk[:want]; len(b) > 0; b = b[size:] {
			x = append(x, F(idxElement(kind, b)))
		}
	}
	switch _, err := src.ReadByte(); {
	case err == nil:
		return bad("bytes follow the %v = %d elements that the header promises", dims, total)
	case err != io.EOF: // such as a checksum that does not fit
		return bad("after all %d elements: %v", total, err)
	}
	for i, v := range x {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return bad("element %d is not a finite number", i)
		}
	}
	return dims, kind, x, nil
}

func idxElement(kind byte, b []byte) float64 {
	switch kind {
	case idxUint8:
		return float64(b[0])
	case idxInt8:
		return float64(int8(b[0]))
	case idxInt16:
		return float64(int16(binary.BigEndian.Uint16(b)))
	case idxInt32:
		return float64(int32(binary.BigEndian.Uint32(b)))
	case idxFloat32:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	default:
		return math.Float64frombits(binary.BigEndian.Uint64(b))
	}
}

func readIDXImages(src *source) (*samples, error) {
	dims, _, x, err := readIDX[float32](src)
	if err != nil {
		return nil, err
	}
	if len(dims) < 2 {
		return nil, badData(src.name, 0, "one dimension: these are labels, not images")
	}
	return &samples{file: src.name, features: len(x) / dims[0], x: x, label: -1, pixel: true}, nil
}

// readIDXPair reads PREFIX-images-idx?-* and PREFIX-labels-idx1-* from a
// directory; found is false if there are no images of that prefix.
func readIDXPair(dir, prefix string) (s *samples, found bool, err error) {
	images, ok := findIDX(dir, prefix, "images")
	if !ok {
		return nil, false, nil
	}
	labels, ok := findIDX(dir, prefix, "labels")
	if !ok {
		return nil, false, badData(images, 0, "no %s-labels-idx1-ubyte (or .gz, .zst) beside it", prefix)
	}
	src, err := openFile(images)
	if err != nil {
		return nil, false, err
	}
	defer src.Close()
	if s, err = readIDXImages(src); err != nil {
		return nil, false, err
	}
	from, err := openFile(labels)
	if err != nil {
		return nil, false, err
	}
	defer from.Close()
	dims, kind, y, err := readIDX[float64](from)
	if err != nil {
		return nil, false, err
	}
	rows := len(s.x) / s.features
	if len(dims) != 1 || dims[0] != rows {
		return nil, false, badData(labels, 0, "dimensions %v, but %s has %d images", dims, images, rows)
	}
	bits := 64
	if kind == idxFloat32 {
		bits = 32 // as short as it was written
	}
	s.words = interned{}
	for _, v := range y {
		s.labels = append(s.labels, s.words.get(canonicalLabel(strconv.AppendFloat(nil, v, 'g', -1, bits))))
	}
	return s, true, nil
}

func findIDX(dir, prefix, what string) (string, bool) {
	for _, sep := range []string{"-", "."} {
		matches, _ := filepath.Glob(filepath.Join(globEscape(dir), prefix+"-"+what+sep+"idx*"))
		for _, m := range matches {
			if info, err := os.Stat(m); err == nil && info.Mode().IsRegular() { // not a directory, as archives may have it
				return m, true
			}
		}
	}
	return "", false
}

// globEscape keeps a directory's own brackets from being a pattern.
func globEscape(dir string) string {
	var b []byte
	for _, c := range []byte(dir) {
		if c == '*' || c == '?' || c == '[' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return string(b)
}
