package native

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
)

// pause is what the polling goroutine does after its i-th poll in vain since it stopped spinning.
func pause(i int) {
	if i < yieldPolls {
		osyield.Yield() // 0.3 µs where nobody else wants the core
		return
	}
	nap(napFor(i - yieldPolls))
}

// napFor grows from 20 µs to 1 ms: a rank that has been idle for a second takes 2 % of
// a core, and notices a message after half a millisecond.
func napFor(n int) time.Duration {
	switch {
	case n < 200:
		return 20 * time.Microsecond
	case n < 2000:
		return 100 * time.Microsecond
	case n < 7000:
		return 200 * time.Microsecond
	}
	return time.Millisecond
}

// nap sleeps in the kernel. The thread's timer slack of 50 µs would come on top, so it
// is set to 1 µs; time.Sleep would take a millisecond.
func nap(d time.Duration) {
	const slack = 1000 // ns
	unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, slack, 0)
	osyield.Nanosleep(d)
}
