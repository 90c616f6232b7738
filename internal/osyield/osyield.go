// Package osyield is how a rank waits: it pauses between two looks (Pause), and asks the kernel to give the core to another
// process, to sleep, or to run on another core (Home). Nothing here knows what is waited for.
//
// Go's own Gosched only looks for other goroutines, and with more ranks than cores that is not
// enough: a token ring of four ranks on two cores took 3.5 ms a hop with it
// and 2.5 µs with sched_yield.
package osyield

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Yield calls sched_yield(2).
func Yield() { syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Nanosleep sleeps in the kernel without Go's timers, which round up to a
// millisecond on an idle process. The caller's thread blocks; other goroutines go on.
func Nanosleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal ends it early, which is harmless
}
