//go:build !race

package fence

// Store stores v at p after all earlier stores, without waiting for them to
// become visible. atomic.StoreUint64 is an XCHG here and stalls until the cache
// line has been fetched from whoever read it last, which is most of what a short
// message costs its sender; amd64 keeps stores in order without that, and the compiler keeps those of Go in the order in
// which they are written. What is lost is the order with later loads.
func Store(p *uint64, v uint64) { *p = v }

// Ahead asks for the cache line of next, which this processor will write soon, and does not wait for it.
//
//go:noescape
func Ahead(next *uint64)

// Fetch asks for the cache line of next, which this processor will read soon, and does not wait for it.
//
//go:noescape
func Fetch(next *uint64)

// StoreIsFull says whether loads after Store are ordered after it.
const StoreIsFull = false
