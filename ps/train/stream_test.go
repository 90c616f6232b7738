package train

// How compressed files are told.

import (
	"bytes"
	"io"
	"slices"
	"testing"
)

// A zstd file may begin with frames that are not its content.
func TestZstdSkippableFrame(t *testing.T) {
	for magic := byte(0x50); magic <= 0x5f; magic++ {
		packed := slices.Concat([]byte{magic, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}, zst(t, []byte("1,2,0\n")))
		s, err := decompress(bytes.NewReader(packed), "skippable")
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(s); err != nil || string(text) != "1,2,0\n" {
			t.Errorf("%#x: %q, %v", magic, text, err)
		}
		s.Close()
	}
}
