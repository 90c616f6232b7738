//go:build !race

package memcopy

import (
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// rowBytes is the length of a row, the unit in which long vectors go past the caches.
const rowBytes = 16 << 10

// way is how rows are copied past the caches: as one stream, or as several parts of each row side by side, a line or two of each
// by turns. Which way is quickest differs by factors from one processor to the next, in either direction. Intel's memory gives
// more to several streams than to one, and the lines of each page are asked for by a prefetcher of its own: 64 MiB in quarters
// take 0.6 of the time of one stream. AMD's processors write to few streams at a time: quarters take four times as long as
// halves on Zen 3, and halves twice as long as one wide stream on Zen 5. So the ways are timed (quickestWay).
type way uint8

const (
	inHalves   way = iota // by registers that every processor has
	inQuarters            // by AVX-512's registers, which hold a line
	asOne                 // likewise
)

// copy copies n rows from src to dst, which begins with a line.
func (w way) copy(dst, src *byte, n int) {
	switch w {
	case inQuarters:
		streamWideQuarters(dst, src, n)
	case asOne:
		streamWide(dst, src, n)
	default:
		streamHalves(dst, src, n)
	}
}

// streamHalves copies rows past the caches in two parts each. dst begins with a line.
//
//go:noescape
func streamHalves(dst, src *byte, rows int)

// streamWideQuarters is streamHalves in four parts, two whole lines of each at a time.
//
//go:noescape
func streamWideQuarters(dst, src *byte, rows int)

// streamWide copies rows past the caches in one part, two whole lines at a time. dst begins with a line.
//
//go:noescape
func streamWide(dst, src *byte, rows int)

// wayHere is the quickest way on this processor, found when the first row is copied.
var wayHere = sync.OnceValue(func() way { return quickestWay(waysHere()) })

// waysHere are the ways that this processor has.
func waysHere() []way {
	if !cpu.X86.HasAVX512F {
		return []way{inHalves}
	}
	return []way{inHalves, inQuarters, asOne}
}

const (
	// trialRows are copied to time a way: enough for the streams to fill the processor's buffers. It takes some 5 µs, and
	// about as long to take what is copied out of the caches.
	trialRows = 8
	// trials of each way, by turns. The quickest of them counts: the others may have been interrupted.
	trials = 5
)

// quickestWay times the ways on memory that is in no cache, and returns the quickest. That takes some 0.2 to 0.4 ms. Of two ways
// that differ by a tenth it now and then takes the slower.
func quickestWay(ways []way) way {
	if len(ways) == 1 {
		return ways[0]
	}
	const n = trialRows * rowBytes
	room := make([]byte, 2*n+lineBytes)
	for i := range room { // pages of its own
		room[i] = 1
	}
	room = room[-uintptr(unsafe.Pointer(&room[0]))%lineBytes:]
	dst, src := &room[0], &room[n]
	took := make([]time.Duration, len(ways))
	for trial := range trials {
		for i, w := range ways {
			flush(src, n/lineBytes)
			begun := time.Now()
			w.copy(dst, src, trialRows)
			if t := time.Since(begun); trial == 0 || t < took[i] {
				took[i] = t
			}
		}
	}
	best := 0
	for i, t := range took {
		if t < took[best] {
			best = i
		}
	}
	return ways[best]
}

// flush takes memory out of all caches.
//
//go:noescape
func flush(mem *byte, lines int)
