package train

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/fisterra-hpc/fisterra/internal/wholefile"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// Models and checkpoints are written in the safetensors form, which other
// tools read: a little-endian length, a JSON header that names tensors with
// type, shape and place, then the numbers.

// namedTensor is one entry of such a file.
type namedTensor struct {
	name  string
	dtype string // F32, F64
	shape []int
	bytes []byte
}

type tensorEntry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// maxHeaderBytes is the form's own limit.
const maxHeaderBytes = 100 << 20

func dtypeOf[F Float]() string {
	if ps.TypeOf[F]() == ps.Float32 {
		return "F32"
	}
	return "F64"
}

func dtypeBytes(dtype string) int64 {
	switch dtype {
	case "F32":
		return 4
	case "F64":
		return 8
	}
	return 0
}

// tensor views numbers as a named tensor.
func tensor[F Float](name string, v []F, shape ...int) namedTensor {
	if len(shape) == 0 {
		shape = []int{len(v)}
	}
	return namedTensor{name, dtypeOf[F](), shape, mpi.Bytes(v)}
}

// writeTensors replaces the file at path as a whole: a reader, or a crash,
// sees the old content or the new.
func writeTensors(path string, meta map[string]string, tensors []namedTensor) error {
	header := map[string]any{"__metadata__": meta}
	var at int64
	for _, t := range tensors {
		end := at + int64(len(t.bytes))
		header[t.name] = tensorEntry{t.dtype, t.shape, [2]int64{at, end}}
		at = end
	}
	head, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("train: %s: %w", path, err)
	}
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	return replaceFile(path, func(w io.Writer) error {
		out := bufio.NewWriterSize(w, 1<<20)
		var length [8]byte
		binary.LittleEndian.PutUint64(length[:], uint64(len(head)))
		out.Write(length[:])
		out.Write(head)
		for _, t := range tensors {
			out.Write(t.bytes)
		}
		return out.Flush()
	})
}

// replaceFile writes a file that is there as a whole or not at all.
func replaceFile(path string, write func(io.Writer) error) error {
	if err := wholefile.Replace(path, write); err != nil {
		return fmt.Errorf("train: write %s: %w", path, err)
	}
	return nil
}

// readTensors reads a file that writeTensors has written.
func readTensors(path string) (meta map[string]string, tensors map[string]namedTensor, err error) {
	f, info, err := openRegular(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	meta, tensors, err = parseTensors(f, info.Size())
	if err != nil {
		return nil, nil, badData(path, 0, "%v", err)
	}
	return meta, tensors, nil
}

func parseTensors(r io.Reader, sizeBytes int64) (map[string]string, map[string]namedTensor, error) {
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, nil, fmt.Errorf("header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeaderBytes || int64(n) > sizeBytes-8 {
		return nil, nil, fmt.Errorf("a header of %d bytes in a file of %d", n, sizeBytes)
	}
	head := make([]byte, n)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(head, &raw); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	meta := map[string]string{}
	if m, ok := raw["__metadata__"]; ok {
		if err := json.Unmarshal(m, &meta); err != nil {
			return nil, nil, fmt.Errorf("metadata: %w", err)
		}
		delete(raw, "__metadata__")
	}
	data := make([]byte, sizeBytes-8-int64(n))
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, nil, fmt.Errorf("numbers: %w", err)
	}
	tensors := map[string]namedTensor{}
	for name, m := range raw {
		var e tensorEntry
		if err := json.Unmarshal(m, &e); err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		want := dtypeBytes(e.DType)
		if want == 0 {
			return nil, nil, fmt.Errorf("tensor %q has the type %q; F32 and F64 are possible", name, e.DType)
		}
		for _, d := range e.Shape {
			if d < 0 || d > 0 && want > sizeBytes/int64(d) {
				return nil, nil, fmt.Errorf("tensor %q has the shape %v", name, e.Shape)
			}
			want *= int64(d)
		}
		begin, end := e.Offsets[0], e.Offsets[1]
		if begin < 0 || end < begin || end > int64(len(data)) || end-begin != want {
			return nil, nil, fmt.Errorf("tensor %q of shape %v lies at bytes %d to %d of %d", name, e.Shape, begin, end, len(data))
		}
		tensors[name] = namedTensor{name, e.DType, e.Shape, data[begin:end]}
	}
	return meta, tensors, nil
}

// numbers copies a tensor's content into dst.
func numbers[F Float](tensors map[string]namedTensor, name string, dst []F) error {
	t, ok := tensors[name]
	if !ok {
		return errors.New("no tensor " + name)
	}
	if t.dtype != dtypeOf[F]() || len(t.bytes) != len(mpi.Bytes(dst)) {
		return fmt.Errorf("tensor %s has %d bytes of %s, want %d of %s", name, len(t.bytes), t.dtype, len(mpi.Bytes(dst)), dtypeOf[F]())
	}
	copy(mpi.Bytes(dst), t.bytes)
	return nil
}
