//go:build !linux || !(amd64 || arm64) || purego_off

package clib

import (
	"errors"
	"testing"
)

func TestOpenSaysBuiltWithout(t *testing.T) {
	if _, err := Open("libc.so.6"); !errors.Is(err, ErrBuiltWithout) || !errors.Is(err, ErrNotLoaded) {
		t.Errorf("Open = %v, want ErrBuiltWithout", err)
	}
}
