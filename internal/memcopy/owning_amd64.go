//go:build !race

package memcopy

import "golang.org/x/sys/cpu"

// ownLines copies lines of 64 bytes, at least one, from src to dst. With each it asks for the line of dst aheadBytes further on.
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

// owning copies src to dst, which have the same length, at least aheadBytes, and do not overlap.
func owning(dst, src []byte) {
	OwnAhead(dst[:aheadBytes])
	at := 0
	if lines := (len(dst) - aheadBytes) / lineBytes; lines > 0 {
		if cpu.X86.HasAVX {
			ownWideLines(&dst[0], &src[0], lines)
		} else {
			ownLines(&dst[0], &src[0], lines)
		}
		at = lines * lineBytes
	}
	copy(dst[at:], src[at:]) // nothing behind it is asked for
}
