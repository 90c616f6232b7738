//go:build !amd64

package fence

import "sync/atomic"

// Loads orders earlier loads before later ones: an atomic load alone lets earlier
// ones come after it, but not after a store that releases, which itself comes before the atomic load.
func Loads() {
	var w uint64
	atomic.StoreUint64(&w, 1)
}
