// Package memcopy copies long vectors, and pieces of them: through the caches where they fit, past the caches where they do
// not, and to memory that another processor reads (Owning, Crossing). It also copies single words (Short). Go's copy decides
// by the length of the one copy, and goes past the caches from 1 MiB on: 4 MiB, which many processors have room for, take
// three times longer so.
package memcopy

import "unsafe"

const (
	// stepBytes is less than what Go's copy takes past the caches.
	stepBytes = 512 << 10
	// cachedBytes is the longest copy that goes through the caches: with a few on other cores at the same time
	// it fits into 32 MiB that they share. Twice as long ones were quicker past them.
	cachedBytes = 8 << 20
	// ownBytes go through the caches however many ranks copy: many ranks have the caches of many processors.
	ownBytes = 2 << 20
)

// Copy copies as many bytes as the shorter has from src to dst, and returns their number, as copy does, also if they overlap.
func Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n <= stepBytes || Overlap(dst[:n], src[:n]) {
		return copy(dst, src)
	}
	for at := 0; at < n; at += stepBytes {
		to, from := dst[at:min(at+stepBytes, n)], src[at:]
		if n > cachedBytes {
			past(to, from)
		} else {
			copy(to, from)
		}
	}
	return n
}

// Fits reports whether a vector of n bytes has room in the caches beside the vectors that it is made of, where so many ranks
// have one each at the same time. Two ranks have as much room each as one alone.
func Fits(n, ranks int) bool { return n < max(2*cachedBytes/max(2, ranks), ownBytes) }

// Piece copies as many bytes as the shorter has from src, which does not overlap dst, to dst: a piece of a vector of
// wholeBytes, of which so many ranks have one each at the same time. If the vectors do not fit into the caches, the piece
// goes past them although it would fit by itself. Otherwise each line of dst would be fetched only to be overwritten, and
// would push out lines that are still wanted.
func Piece(dst, src []byte, wholeBytes, ranks int) int {
	if Fits(wholeBytes, ranks) {
		return Copy(dst, src)
	}
	return past(dst, src)
}

// past copies past the caches.
func past(dst, src []byte) int {
	n := min(len(dst), len(src))
	stream(dst[:n], src[:n])
	return n
}

// Overlap reports whether two slices have bytes in common.
func Overlap(a, b []byte) bool {
	x, y := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}
