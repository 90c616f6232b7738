//go:build !race

package biased

import "sync/atomic"

// enter takes a lock for its owner, if that is the calling goroutine. late is its claim if it lost the lock at that moment:
// others may have seen it inside, where it is not any more.
//
//go:noescape
func enter(owned *atomic.Pointer[claim]) (late *claim, did bool)

// goroutine names the calling goroutine. Another may have its name after it has ended.
func goroutine() uintptr
