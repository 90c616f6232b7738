//go:build !race

package memcopy

import "golang.org/x/sys/cpu"

// ownLines copies whole lines, of 64 bytes each from dst on, and asks for those of dst ahead of their turn.
//
//go:noescape
func ownLines(dst, src *byte, lines int)

// ownWideLines is ownLines by registers of half a line, AVX's.
//
//go:noescape
func ownWideLines(dst, src *byte, lines int)

// ownAhead asks for lines, at least one.
//
//go:noescape
func ownAhead(p *byte, lines int)

// owning copies src to dst, which are of the same length, not empty and do not overlap.
func owning(dst, src []byte) {
	lines := len(dst) / lineBytes
	if lines > 0 {
		if cpu.X86.HasAVX {
			ownWideLines(&dst[0], &src[0], lines)
		} else {
			ownLines(&dst[0], &src[0], lines)
		}
	}
	copy(dst[lines*lineBytes:], src[lines*lineBytes:])
}
