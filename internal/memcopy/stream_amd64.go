//go:build !race

package memcopy

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// rowBytes are four pages that are copied side by side, a line or two of each by turns: memory gives more
// to several streams than to one, and each page's lines are asked for by a prefetcher of its own.
const rowBytes = 4 * 4096

// streamLines copies whole lines past the caches. dst begins with one.
//
//go:noescape
func streamLines(dst, src *byte, lines int)

// streamRows copies rows past the caches. dst begins with a line.
//
//go:noescape
func streamRows(dst, src *byte, rows int)

// streamWideRows is streamRows by registers of a whole line, AVX-512's.
//
//go:noescape
func streamWideRows(dst, src *byte, rows int)

// stream copies src to dst, which are of the same length and do not overlap, past the caches.
func stream(dst, src []byte) {
	if len(dst) < 2*lineBytes {
		copy(dst, src)
		return
	}
	at := int(-uintptr(unsafe.Pointer(&dst[0])) % lineBytes)
	copy(dst[:at], src)
	if rows := (len(dst) - at) / rowBytes; rows > 0 {
		if cpu.X86.HasAVX512F {
			streamWideRows(&dst[at], &src[at], rows)
		} else {
			streamRows(&dst[at], &src[at], rows)
		}
		at += rows * rowBytes
	}
	if lines := (len(dst) - at) / lineBytes; lines > 0 {
		streamLines(&dst[at], &src[at], lines)
		at += lines * lineBytes
	}
	copy(dst[at:], src[at:])
}
