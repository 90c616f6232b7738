package launch

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// hasEnded reports whether a child has ended, also before anybody has waited for it.
func hasEnded(pid int) bool {
	var ended unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &ended, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return ended.Signo != 0 || err == unix.ECHILD
}

// ends tells of children that have ended. It takes one descriptor and one goroutine for all of them, and watches the pidfds
// that Go has anyway. waitid(2) would hold a thread for each rank, and a Go program with 10,000 threads crashes.
type ends struct {
	fd   int // epoll(7), which Go's poller watches
	file *os.File
	mu   sync.Mutex
	over map[int]chan struct{} // by process number: closed at the end
	done chan struct{}         // closed when nobody watches any more
}

func watchEnds() (*ends, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(fd, true) // os.NewFile gives Go's poller only such; without it the read below fails
	e := &ends{fd: fd, file: os.NewFile(uintptr(fd), "epoll"), over: map[int]chan struct{}{}, done: make(chan struct{})}
	raw, err := e.file.SyscallConn()
	if err != nil {
		e.file.Close()
		return nil, err
	}
	go func() {
		defer close(e.done)
		_ = raw.Read(e.tell) // until Close
	}()
	return e, nil
}

// Close ends the watching; nobody may await an end any more.
func (e *ends) Close() error { return e.file.Close() }

// tell takes all events there are, since Go's poller tells only of new ones. It always reports false, by which the poller
// goes on waiting.
func (e *ends) tell(uintptr) bool {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(e.fd, events[:], 0)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return false
		}
		e.mu.Lock()
		for _, ev := range events[:n] {
			if over := e.over[int(ev.Fd)]; over != nil {
				close(over)
				delete(e.over, int(ev.Fd))
			}
		}
		e.mu.Unlock()
	}
}

// await returns when a child has ended, and leaves it to be waited for.
func (e *ends) await(p *os.Process) {
	if over, err := e.watch(p); err == nil {
		select {
		case <-over:
		case <-e.done: // Go's poller cannot watch here
		}
	}
	awaitByLooking(p.Pid)
}

// watch fails where the kernel has no pidfds (before Linux 5.4).
func (e *ends) watch(p *os.Process) (<-chan struct{}, error) {
	over := make(chan struct{})
	e.mu.Lock()
	e.over[p.Pid] = over
	e.mu.Unlock()
	var added error
	err := p.WithHandle(func(pidfd uintptr) {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(p.Pid)}
		added = unix.EpollCtl(e.fd, unix.EPOLL_CTL_ADD, int(pidfd), &event)
	})
	return over, errors.Join(err, added)
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
