package mpi

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// sleepSet is the world's one sleep: an epoll set with everything that can
// wake this rank, and an eventfd for wake-ups from this process.
// It uses raw epoll_wait: a wake-up through Go's network poller costs ten times as much.
type sleepSet struct {
	epoll int
	bell  int

	mu     sync.Mutex // of closed
	closed bool
}

func newSleepSet() (*sleepSet, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	s := &sleepSet{epoll: ep, bell: bell}
	if err := s.Watch(bell, unix.EPOLLIN); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// Watch implements transport.Set.
func (s *sleepSet) Watch(fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
	if err == unix.EEXIST {
		err = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_MOD, fd, &ev)
	}
	if err != nil {
		return fmt.Errorf("epoll_ctl on descriptor %d: %w", fd, err)
	}
	return nil
}

// Unwatch implements transport.Set.
func (s *sleepSet) Unwatch(fd int) {
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil) // closed already: gone from the set
}

// wait blocks until a descriptor is ready or timeout milliseconds have passed
// (-1: no limit). Two goroutines may wait at once; either may then take the
// ring that was meant for the other, and has to ring again.
func (s *sleepSet) wait(timeout int) {
	var events [8]unix.EpollEvent
	n, err := unix.EpollWait(s.epoll, events[:], timeout)
	if err != nil {
		return // EINTR: the caller looks again
	}
	for _, ev := range events[:n] {
		if int(ev.Fd) == s.bell {
			var b [8]byte
			_, _ = unix.Read(s.bell, b[:]) // EAGAIN: another waiter took it
		}
	}
}

// ring wakes one that waits. After close it does nothing: the end of a context may
// come when nobody waits any more.
func (s *sleepSet) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	b := [8]byte{1}
	_, _ = unix.Write(s.bell, b[:]) // EAGAIN only if the counter is full: it is readable then
}

func (s *sleepSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	unix.Close(s.bell)
	unix.Close(s.epoll)
}
