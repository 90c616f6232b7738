//go:build race

package native

import "runtime"

// touch tells the race detector what C does to a request's buffers, at the start and at
// the end of an operation: it cannot see C's own accesses.
func touch(r *Request) {
	if r.buf == nil || r.bytes == 0 {
		return
	}
	switch r.op {
	case opIsend:
		runtime.RaceReadRange(r.buf, r.bytes)
	case opIrecv:
		runtime.RaceWriteRange(r.buf, r.bytes)
	}
}
