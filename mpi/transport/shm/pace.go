package shm

import "time"

// How quickly the byte ring of a peer can be written tells how far the two ranks
// are from each other: each line of it comes back from the cache of the reader,
// who may sit on another socket, and on a virtual machine may move there. Near each
// other, two copies through the ring beat one by the kernel; far apart they
// are up to twelve times slower, since both wait for lines.

const (
	// slowMessages in a row before make the next slow one the last: an interrupt slows one.
	slowMessages = 2
	// farMessages go by one copy to a peer that is far, before the ring is tried again: a ring that
	// has left the caches meanwhile may be slow at first.
	farMessages = 512
)

// pace is what the stream under way shows.
type pace struct {
	perByte float64 // nanoseconds, of the quickest chunk; 0: none yet
	slow    int     // messages in a row that were slow, at most slowMessages
	far     int     // messages that still go by one copy
}

// note takes the time of a copy of n bytes into the ring. One that was interrupted
// does not count, since the quickest does.
func (p *pace) note(took time.Duration, n int) {
	if t := float64(took.Nanoseconds()) / float64(n); p.perByte == 0 || t < p.perByte {
		p.perByte = t
	}
}

// judge ends a stream: kernel is the time of a byte by the kernel. Between ranks that are near, a
// copy into the ring takes less than half of it, and between ranks that are far more.
func (p *pace) judge(kernel float64) {
	switch {
	case p.perByte <= kernel:
		p.slow = 0
	case p.slow < slowMessages:
		p.slow++
	default:
		p.far, p.slow = farMessages, 0
	}
	p.perByte = 0
}

// pulled reports whether the next message to the peer goes by one copy.
func (p *pace) pulled() bool {
	if p.far == 0 {
		return false
	}
	p.far--
	return true
}
