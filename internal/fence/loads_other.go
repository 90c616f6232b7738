//go:build !amd64

package fence

import "sync/atomic"

// Loads orders earlier loads before a later atomic load, which alone lets earlier loads come after it. A store that releases
// does not: they come before it, and it comes before the atomic load.
func Loads() {
	var w uint64
	atomic.StoreUint64(&w, 1)
}
