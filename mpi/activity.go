package mpi

import "slices"

// Whether the program communicates, for the keeper: by calls of this package, or beside messages.

// Counter is a number that grows. Any goroutine may load it at any time.
type Counter interface{ Load() uint64 }

// CountsCalls tells the world of a counter of calls that communicate without messages, such as collectives in shared
// memory. While the counter grows, the keeper looks for messages every few milliseconds instead of sleeping until one
// comes, since each message would have to wake it. end takes the counter back. Not collective; over the system's MPI
// library it does nothing.
func (c *Comm) CountsCalls(counter Counter) (end func()) {
	e, ok := c.dev.(*engine)
	if !ok {
		return func() {}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.beside = append(e.beside, counter)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if i := slices.Index(e.beside, counter); i >= 0 {
			e.beside = slices.Delete(e.beside, i, i+1)
			e.calls += counter.Load()
		}
	}
}

// activity is a number that has changed when the program has communicated. The lock is held.
func (e *engine) activity() uint64 {
	n := e.calls
	for _, counter := range e.beside {
		n += counter.Load()
	}
	return n
}
