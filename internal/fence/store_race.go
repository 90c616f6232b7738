//go:build amd64 && race

package fence

import "sync/atomic"

// The race detector does not see stores in assembly. Here they are Go's, and the rest of the
// program goes on as if they ordered no more than the processor's.

// Store stores v at p after all earlier stores.
func Store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// Ahead does nothing.
func Ahead(*uint64) {}

// Fetch does nothing.
func Fetch(*uint64) {}

// StoreIsFull says whether loads after Store are ordered after it.
const StoreIsFull = false
