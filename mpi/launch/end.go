package launch

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// hasEnded is true for a child that has ended by itself, also before anybody has waited for it.
func hasEnded(pid int) bool {
	var ended unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &ended, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return ended.Signo != 0 || err == unix.ECHILD
}

// awaitEnd returns when a child has ended, and leaves it to be waited for. Go's poller watches its pidfd: waitid(2)
// would hold a thread for each rank, and a Go program crashes that has 10,000.
func awaitEnd(pid int) {
	if awaitPidfd(pid) != nil {
		awaitByLooking(pid)
	}
}

// awaitPidfd fails where the kernel has no pidfds (before Linux 5.3), or descriptors are short.
func awaitPidfd(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	_ = unix.SetNonblock(fd, true) // os.NewFile gives Go's poller only such; without it the read below fails
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(uintptr) bool { return hasEnded(pid) })
}

// lookEvery is how late the end of a rank may be noticed where the kernel does not tell.
const lookEvery = 20 * time.Millisecond

// awaitByLooking takes no thread and no descriptor.
func awaitByLooking(pid int) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for !hasEnded(pid) {
		<-look.C
	}
}
