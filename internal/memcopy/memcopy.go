// Package memcopy copies long vectors within a process.
//
// Go's copy goes past the caches from 1 MiB on. What others are about to read, or is about to be
// overwritten, is then fetched from memory again: 4 MiB take up to three times longer. A copy
// that the caches have no room for is quicker past them.
package memcopy

import "unsafe"

const (
	// stepBytes is less than what Go's copy takes past the caches.
	stepBytes = 512 << 10
	// cachedBytes is the longest copy that goes through the caches: with a few on other cores at the same time
	// it fits into 32 MiB that they share. Twice as long ones were quicker past them.
	cachedBytes = 8 << 20
)

// Copy copies as many elements as the shorter has from src to dst, and returns their number, as copy
// does, also if they overlap.
func Copy[T any](dst, src []T) int {
	var zero T
	n, size := min(len(dst), len(src)), int(unsafe.Sizeof(zero))
	if n*size <= stepBytes || n*size > cachedBytes || size > stepBytes || overlap(dst[:n], src[:n]) {
		return copy(dst, src)
	}
	step := stepBytes / size
	for at := 0; at < n; at += step {
		copy(dst[at:n], src[at:min(at+step, n)])
	}
	return n
}

func overlap[T any](a, b []T) bool {
	x, y := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	var zero T
	nBytes := uintptr(len(a)) * unsafe.Sizeof(zero)
	return x < y+nBytes && y < x+nBytes
}
