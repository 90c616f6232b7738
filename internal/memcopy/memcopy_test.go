package memcopy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestCopiesAsCopyDoes(t *testing.T) {
	const longest = cachedBytes + 3
	r := rand.New(rand.NewPCG(1, 2))
	src := make([]byte, longest+5)
	for at := 0; at+8 <= len(src); at += 8 {
		binary.NativeEndian.PutUint64(src[at:], r.Uint64())
	}
	for _, n := range []int{0, 1, stepBytes - 1, stepBytes, stepBytes + 1, 3*stepBytes + 7, cachedBytes, longest} {
		for _, room := range []int{n, n + 5} {
			want, got := make([]byte, room), make([]byte, room)
			copied := copy(want, src[:n])
			if k := Copy(got, src[:n]); k != copied || !slices.Equal(got, want) {
				t.Errorf("%d bytes into %d: %d copied, not %d, or others", n, room, k, copied)
			}
			if clear(got); n < room && (Copy(got[:n], src) != n || !slices.Equal(got, want)) {
				t.Errorf("%d bytes of more: others, or more than there is room for", n)
			}
		}
	}
}

func TestPieces(t *testing.T) {
	const room, longest = 64, 3*16384 + 4096
	src, dst := make([]byte, longest+3*room), make([]byte, longest+3*room)
	for i := range src {
		src[i] = byte(i*7 + i/251)
	}
	check := func(at, from, n int, what string, copied int) {
		t.Helper()
		if copied != n || !slices.Equal(dst[at:at+n], src[from:from+n]) {
			t.Fatalf("%s: %d bytes from %d to %d: %d copied, or others", what, n, from, at, copied)
		}
		if slices.ContainsFunc(dst[:at], func(b byte) bool { return b != 0 }) || slices.ContainsFunc(dst[at+n:], func(b byte) bool { return b != 0 }) {
			t.Fatalf("%s: %d bytes from %d to %d: more was written", what, n, from, at)
		}
	}
	for from := range 3 {
		for at := range room {
			for _, n := range []int{0, 1, 63, 64, 127, 128, 129, 191, 192, 193, 1000, 16384, 16384 + 63, 32768 + 130, longest} {
				clear(dst)
				check(at, from, n, "Piece", Piece(dst[at:at+n], src[from:], cachedBytes, 2))
				check(at, from, n, "Piece that fits", Piece(dst[at:at+n], src[from:], n, 1))
			}
		}
	}
}

func TestOverlap(t *testing.T) {
	const n = 2 * stepBytes
	for _, shift := range []int{-5, 0, 5, stepBytes + 1} {
		want, got := make([]byte, 3*n), make([]byte, 3*n)
		for i := range want {
			want[i] = byte(i*7 + i/251)
		}
		copy(got, want)
		const at = n / 2
		copy(want[at+shift:][:n], want[at:][:n])
		if Copy(got[at+shift:][:n], got[at:][:n]); !slices.Equal(got, want) {
			t.Errorf("shifted by %d: not what copy makes of it", shift)
		}
	}
}

// Every core copies in pieces.
func BenchmarkPast(b *testing.B) {
	const piece = 64 << 10
	for _, by := range []struct {
		name string
		copy func(dst, src []byte) int
	}{{"past", past}, {"copy", func(dst, src []byte) int { return copy(dst, src) }}} {
		for _, n := range []int{4 << 20, 64 << 20} {
			b.Run(fmt.Sprintf("%s/%d", by.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.RunParallel(func(pb *testing.PB) {
					dst, src := make([]byte, n), bytes.Repeat([]byte{1}, n)
					for pb.Next() {
						for at := 0; at < n; at += piece {
							by.copy(dst[at:at+piece], src[at:])
						}
					}
				})
			})
		}
	}
}

// Every core copies buffers of its own.
func BenchmarkCopy(b *testing.B) {
	for _, by := range []struct {
		name string
		copy func(dst, src []byte) int
	}{{"Copy", Copy}, {"copy", func(dst, src []byte) int { return copy(dst, src) }}} {
		for _, n := range []int{64 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", by.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.RunParallel(func(pb *testing.PB) {
					dst, src := make([]byte, n), bytes.Repeat([]byte{1}, n)
					for pb.Next() {
						by.copy(dst, src)
					}
				})
			})
		}
	}
}

// Owning copies what it is to copy and nothing beside, wherever that begins and ends.
func TestOwning(t *testing.T) {
	const room, longest = 70, 3000
	src, dst := make([]byte, longest+3*room), make([]byte, longest+3*room)
	for i := range src {
		src[i] = byte(i*7 + i/251)
	}
	lengths := []int{0, 1, 63, 64, aheadBytes - 1, longest}
	for n := aheadBytes; n <= aheadBytes+3*lineBytes; n += 13 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		for at := range room {
			from := at * 5 % room
			want := make([]byte, len(dst))
			copy(want[at:], src[from:][:n])
			clear(dst)
			OwnAhead(dst[at:][:n])
			if got := Owning(dst[at:][:n], src[from:]); got != n || !bytes.Equal(dst, want) {
				t.Fatalf("%d bytes from %d to %d: %d copied, or others, or more", n, from, at, got)
			}
			if got := Owning(dst[at:], src[from:][:n]); got != n {
				t.Fatalf("%d bytes into more: %d copied", n, got)
			}
		}
	}
}

// Two ranks have what one copy has; more have less each, but what one core's caches have room for.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		n, ranks int
		want     bool
	}{
		{cachedBytes - 1, 1, true}, {cachedBytes, 1, false},
		{cachedBytes - 1, 2, true}, {cachedBytes, 2, false},
		{cachedBytes/2 - 1, 4, true}, {cachedBytes / 2, 4, false},
		{ownBytes - 1, 16, true}, {ownBytes, 16, false},
	} {
		if got := Fits(c.n, c.ranks); got != c.want {
			t.Errorf("%d bytes on %d ranks: %v", c.n, c.ranks, got)
		}
	}
}

func TestShort(t *testing.T) {
	for to := range 20 {
		for from := range 20 {
			src, got, want := make([]byte, from), make([]byte, to), make([]byte, to)
			for i := range src {
				src[i] = byte(i + 1)
			}
			Short(got, src)
			copy(want, src)
			if !bytes.Equal(got, want) {
				t.Errorf("%d of %d bytes: %v", to, from, got)
			}
		}
	}
}
