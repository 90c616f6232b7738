//go:build !race

package memcopy

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/cpu"
)

// rowBytes are copied in two or four parts side by side, a line or two of each by turns: memory gives more
// to several streams than to one, and the lines of each page are asked for by a prefetcher of its own.
const rowBytes = 16 << 10

// inQuarters: rows are copied in four parts, by AVX-512's registers of a whole line. On Intel's processors 64 MiB take 0.6 of
// the time of one stream so. AMD's (Zen 3) write to few streams at a time: there four take four times longer than two.
var inQuarters = cpu.X86.HasAVX512F && !cpuid.CPU.IsVendor(cpuid.AMD) && !cpuid.CPU.IsVendor(cpuid.Hygon)

// streamLines copies whole lines past the caches. dst begins with one.
//
//go:noescape
func streamLines(dst, src *byte, lines int)

// streamHalves copies rows past the caches, in two parts each. dst begins with a line.
//
//go:noescape
func streamHalves(dst, src *byte, rows int)

// streamWideQuarters is streamHalves in four parts, two whole lines of each at a time.
//
//go:noescape
func streamWideQuarters(dst, src *byte, rows int)

// stream copies src to dst, which are of the same length and do not overlap, past the caches.
func stream(dst, src []byte) {
	if len(dst) < 2*lineBytes {
		copy(dst, src)
		return
	}
	at := int(-uintptr(unsafe.Pointer(&dst[0])) % lineBytes)
	copy(dst[:at], src)
	if rows := (len(dst) - at) / rowBytes; rows > 0 {
		if inQuarters {
			streamWideQuarters(&dst[at], &src[at], rows)
		} else {
			streamHalves(&dst[at], &src[at], rows)
		}
		at += rows * rowBytes
	}
	if lines := (len(dst) - at) / lineBytes; lines > 0 {
		streamLines(&dst[at], &src[at], lines)
		at += lines * lineBytes
	}
	copy(dst[at:], src[at:])
}
