//go:build !race

package memcopy

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// Either way of copying rows, whichever stream prefers here, copies them and nothing beside.
func TestRows(t *testing.T) {
	const longest = 3
	src := make([]byte, longest*rowBytes+lineBytes)
	for i := range src {
		src[i] = byte(i*7 + i/251)
	}
	for _, way := range []struct {
		name string
		can  bool
		copy func(dst, src *byte, rows int)
	}{{"in halves", true, streamHalves}, {"in quarters", cpu.X86.HasAVX512F, streamWideQuarters}} {
		if !way.can {
			t.Logf("%s: not on this processor", way.name)
			continue
		}
		for rows := range longest + 1 {
			for from := range 3 {
				room := make([]byte, (longest+1)*rowBytes)
				line := int(-uintptr(unsafe.Pointer(&room[0])) % lineBytes)
				dst := room[line+lineBytes:]
				way.copy(&dst[0], &src[from], rows)
				want := make([]byte, len(room))
				copy(want[line+lineBytes:], src[from:][:rows*rowBytes])
				if !bytes.Equal(room, want) {
					t.Errorf("%s, %d rows from %d: others, or more", way.name, rows, from)
				}
			}
		}
	}
}
