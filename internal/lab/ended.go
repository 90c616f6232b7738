package lab

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitEnd waits until a process, which need not be a child of this one, has ended. It returns an error if that has not
// happened after the limit.
func AwaitEnd(pid int, limit time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // and has been waited for
	} else if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(end)/time.Millisecond)+1)
		if n > 0 {
			return nil
		} else if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return fmt.Errorf("process %d has not ended after %v", pid, limit)
}
