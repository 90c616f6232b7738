//go:build !amd64 || race

package biased

// lock would take a lock for its owner: here nobody owns one.
func lock(m *Mutex) { lockOrdinary(m) }

// goroutine names none.
func goroutine() uintptr { return 0 }
