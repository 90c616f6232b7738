package train

// How compressed files are told.

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Nobody waits for the writer of a pipe, since what it writes would not be read.
func TestPipesAreRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, read := range map[string]func() error{
		"data":       func() error { _, err := Open(pipe, 1); return err },
		"checkpoint": func() error { _, _, err := readTensors(pipe); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- read() }()
		select {
		case err := <-ended:
			if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), pipe+": not a regular file") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: it waits", what)
		}
	}
}

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
