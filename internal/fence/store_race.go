//go:build amd64 && race

package fence

import "sync/atomic"

// The race detector would take Store's plain store, which others load, for a race: here it is an atomic one. Ahead and Fetch
// are in assembly, which the detector does not see. The rest of the program goes on as if Store ordered no more than the
// processor does.

// Store stores v at p after all earlier stores.
func Store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// Ahead does nothing.
func Ahead(*uint64) {}

// Fetch does nothing.
func Fetch(*uint64) {}

// StoreIsFull says whether loads after Store are ordered after it.
const StoreIsFull = false
