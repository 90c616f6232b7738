//go:build !race

package memcopy

import (
	"bytes"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// Every way of copying rows, whichever is the quickest here, copies them and nothing beside.
func TestRows(t *testing.T) {
	const longest = 3
	src := make([]byte, longest*rowBytes+lineBytes)
	for i := range src {
		src[i] = byte(i*7 + i/251)
	}
	for _, w := range waysHere() {
		for n := range longest + 1 {
			for from := range 3 {
				room := make([]byte, (longest+1)*rowBytes)
				line := int(-uintptr(unsafe.Pointer(&room[0])) % lineBytes)
				dst := room[line+lineBytes:]
				w.copy(&dst[0], &src[from], n)
				want := make([]byte, len(room))
				copy(want[line+lineBytes:], src[from:][:n*rowBytes])
				if !bytes.Equal(room, want) {
					t.Errorf("way %d, %d rows from %d: others, or more", w, n, from)
				}
			}
		}
	}
}

// The way that is found is one of those that were asked for, and only it is timed if it is the only one.
func TestQuickestWay(t *testing.T) {
	ways := waysHere()
	begun := time.Now()
	found := quickestWay(ways)
	t.Logf("way %d of %v, found in %v", found, ways, time.Since(begun))
	if !slices.Contains(ways, found) {
		t.Errorf("way %d of %v", found, ways)
	}
	for _, w := range ways {
		if found := quickestWay([]way{w}); found != w {
			t.Errorf("way %d where there is only %d", found, w)
		}
	}
}

// The ways on memory that is far longer than the caches: what quickestWay is to tell from a few rows.
func BenchmarkRows(b *testing.B) {
	const n = 64 << 20
	dst, src := make([]byte, n+lineBytes), make([]byte, n)
	for i := range src {
		src[i] = byte(i)
	}
	dst = dst[-uintptr(unsafe.Pointer(&dst[0]))%lineBytes:]
	for _, w := range waysHere() {
		b.Run([]string{"in halves", "in quarters", "as one"}[w], func(b *testing.B) {
			b.SetBytes(n)
			for b.Loop() {
				w.copy(&dst[0], &src[0], n/rowBytes)
			}
		})
	}
}
