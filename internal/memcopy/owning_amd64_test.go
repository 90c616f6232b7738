//go:build !race

package memcopy

import (
	"bytes"
	"testing"

	"golang.org/x/sys/cpu"
)

// Either way of copying lines, whichever Owning prefers here, copies them and nothing beside.
func TestOwnLines(t *testing.T) {
	const longest = 20
	src := make([]byte, (longest+1)*lineBytes)
	for i := range src {
		src[i] = byte(i*7 + i/251)
	}
	for _, way := range []struct {
		name string
		can  bool
		copy func(dst, src *byte, lines int)
	}{{"16 bytes at a time", true, ownLines}, {"32 bytes at a time", cpu.X86.HasAVX, ownWideLines}} {
		if !way.can {
			t.Logf("%s: not on this processor", way.name)
			continue
		}
		for lines := 1; lines <= longest; lines++ {
			for from := range 3 {
				got, want := make([]byte, (longest+2)*lineBytes), make([]byte, (longest+2)*lineBytes)
				way.copy(&got[from+1], &src[from], lines)
				copy(want[from+1:], src[from:][:lines*lineBytes])
				if !bytes.Equal(got, want) {
					t.Errorf("%s, %d lines from %d: others, or more", way.name, lines, from)
				}
			}
		}
	}
}
