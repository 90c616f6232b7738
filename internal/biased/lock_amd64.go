//go:build !race

package biased

// lock takes a lock for its owner, if that is the calling goroutine, else by lockOrdinary or lockLate.
func lock(m *Mutex)

// goroutine names the calling goroutine. Once that has ended, another one may have its name.
func goroutine() uintptr
