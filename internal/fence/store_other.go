//go:build !amd64

package fence

import "sync/atomic"

// Store stores v at p after all earlier stores.
func Store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// Ahead does nothing.
func Ahead(*uint64) {}

// Fetch does nothing.
func Fetch(*uint64) {}

// StoreIsFull says whether loads after Store are ordered after it.
const StoreIsFull = true
