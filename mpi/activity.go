package mpi

import "slices"

// Whether the program communicates, for the keeper: by calls of this package, or beside messages.

// Counter is a number that grows. Any goroutine may load it at any time.
type Counter interface{ Load() uint64 }

// CountsCalls has the world take a counter that grows, of collectives in shared memory say, for a count of calls that
// communicate without messages: while it grows, messages that come meanwhile are looked for every few milliseconds,
// and nobody sleeps for them, whom each would have to wake. end takes it back. Not collective; over the system's
// MPI library it does nothing.
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
