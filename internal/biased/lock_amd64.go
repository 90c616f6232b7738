//go:build !race

package biased

// lock takes a lock for its owner, if that is the calling goroutine, else by lockOrdinary. late is nil.
func lock(m *Mutex, late *claim)

// goroutine names the calling goroutine. Another may have its name after it has ended.
func goroutine() uintptr
