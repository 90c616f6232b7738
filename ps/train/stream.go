package train

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	// zstdSkippable follows a byte 0x50 to 0x5f where a file begins with a frame of the writer's own, as files of
	// pzstd do.
	zstdSkippable = []byte{0x2a, 0x4d, 0x18}
)

func isZstd(head []byte) bool {
	return bytes.HasPrefix(head, zstdMagic) || len(head) > 0 && head[0]&0xf0 == 0x50 && bytes.HasPrefix(head[1:], zstdSkippable)
}

// source is a file's decompressed content and the name errors call it by.
type source struct {
	*bufio.Reader
	name  string
	close []func() error
}

// openFile opens a data file. Whether it is compressed is told by its first
// bytes, not by its name.
func openFile(path string) (*source, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	s, err := decompress(f, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	s.close = append(s.close, f.Close)
	return s, nil
}

// openRegular opens a regular file, and does not wait for whoever might write to a pipe.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("train: %w", err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("train: %w", err)
	case !info.Mode().IsRegular():
		err = badData(path, 0, "not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func decompress(r io.Reader, name string) (*source, error) {
	s := &source{Reader: bufio.NewReaderSize(r, 1<<16), name: name}
	head, err := s.Peek(len(zstdMagic))
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("train: %s: %w", name, err)
	}
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(s.Reader)
		if err != nil {
			return nil, badData(name, 0, "gzip: %v", err)
		}
		s.Reader = bufio.NewReaderSize(z, 1<<16)
		s.close = append(s.close, z.Close)
	case isZstd(head):
		z, err := zstd.NewReader(s.Reader, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, badData(name, 0, "zstd: %v", err)
		}
		s.Reader = bufio.NewReaderSize(z, 1<<16)
		s.close = append(s.close, func() error { z.Close(); return nil })
	}
	return s, nil
}

// Close closes the decompressor and the file.
func (s *source) Close() error {
	var first error
	for _, c := range s.close {
		if err := c(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// line returns the next line without its end, or io.EOF. The bytes are valid
// until the next call unless the line is longer than the buffer.
func (s *source) line() ([]byte, error) {
	line, err := s.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		long := bytes.Clone(line)
		for err == bufio.ErrBufferFull {
			if len(long) > maxLineBytes {
				return nil, fmt.Errorf("a line is longer than %d bytes", maxLineBytes)
			}
			line, err = s.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if err == io.EOF && len(line) > 0 {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// maxLineBytes bounds one text line: a million features of twenty characters.
const maxLineBytes = 20 << 20
