package memcopy

import (
	"sync/atomic"
	"time"
)

// Crossing makes those of a rank's copies that another processor reads and the rank itself does not. How quickly they can be
// written tells how far the two are from each other: each line comes back from the caches of the reader, who may sit on
// another socket, and on a virtual machine may move there. Near each other they do best through the caches. Far apart the
// writer goes past them: it waits for no line, and the reader has the lines sooner from memory than out of the writer's
// caches, 16 KiB in 2 µs instead of 5. One goroutine at a time may use a Crossing.
type Crossing struct {
	untimed int // pieces until the next one that is timed
	slow    int // timed pieces in a row that were slow, at most slowPieces
	far     int // pieces that still go past the caches
}

const (
	// pastBytes is the shortest piece that is quicker past the caches.
	pastBytes = 4 << 10
	// timedEvery: one of so many pieces is timed.
	timedEvery = 16
	// slowPieces in a row have to be slow before the next slow one sends pieces past the caches: an interrupt slows one, not
	// several.
	slowPieces = 2
	// farPieces go past the caches where the reader is far, before one through the caches is timed again.
	farPieces = 512
)

// Copy copies a piece. slow is how many nanoseconds a byte takes at least where the reader is far, or 0 if nobody can say.
func (c *Crossing) Copy(dst, src []byte, slow float64) {
	switch {
	case len(src) < pastBytes || slow == 0:
		Owning(dst, src)
	case c.far > 0:
		c.far--
		past(dst, src)
	case c.untimed > 0:
		c.untimed--
		Owning(dst, src)
	default:
		begun := time.Now()
		Owning(dst, src)
		var written atomic.Uint32
		written.Add(1) // waits until what was copied has left the processor's store buffer
		c.judge(float64(time.Since(begun).Nanoseconds())/float64(len(src)) > slow)
	}
}

// judge notes whether a timed piece was slow. One that was interrupted is, but not several in a row.
func (c *Crossing) judge(slow bool) {
	c.untimed = timedEvery - 1
	switch {
	case !slow:
		c.slow = 0
	case c.slow < slowPieces:
		c.slow, c.untimed = c.slow+1, 0
	default:
		c.far, c.untimed = farPieces, 0
	}
}

// Around reports whether something goes another way than by Copy because the reader is far. It counts as a piece: from time
// to time the answer is no, so that a piece is timed and a reader who has come near is found out.
func (c *Crossing) Around() bool {
	if c.far == 0 {
		return false
	}
	c.far--
	return true
}
