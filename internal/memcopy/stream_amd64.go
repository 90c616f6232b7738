//go:build !race

package memcopy

import "unsafe"

const lineBytes = 64

// streamLines copies whole lines past the caches. dst begins with one.
//
//go:noescape
func streamLines(dst, src *byte, lines int)

// stream copies src to dst, which are of the same length and do not overlap, past the caches.
func stream(dst, src []byte) {
	if len(dst) < 2*lineBytes {
		copy(dst, src)
		return
	}
	head := int(-uintptr(unsafe.Pointer(&dst[0])) % lineBytes)
	lines := (len(dst) - head) / lineBytes
	tail := head + lines*lineBytes
	copy(dst[:head], src)
	streamLines(&dst[head], &src[head], lines)
	copy(dst[tail:], src[tail:])
}
