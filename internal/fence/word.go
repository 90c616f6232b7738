package fence

import "sync/atomic"

// Word is a number that any goroutine of a process may load, and one at a time may store, in the order of Store. A goroutine
// that must see the new number before it sleeps runs a fence everywhere first.
type Word struct{ v uint64 }

// Load returns the number.
func (w *Word) Load() uint64 { return atomic.LoadUint64(&w.v) }

// Store sets it after all earlier stores, without waiting for them.
func (w *Word) Store(v uint64) { Store(&w.v, v) }
