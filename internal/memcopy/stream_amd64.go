//go:build !race

package memcopy

import "unsafe"

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
	at := int(-uintptr(unsafe.Pointer(&dst[0])) % lineBytes)
	copy(dst[:at], src)
	if rows := (len(dst) - at) / rowBytes; rows > 0 {
		wayHere().copy(&dst[at], &src[at], rows)
		at += rows * rowBytes
	}
	if lines := (len(dst) - at) / lineBytes; lines > 0 {
		streamLines(&dst[at], &src[at], lines)
		at += lines * lineBytes
	}
	copy(dst[at:], src[at:])
}
