package transporttest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Set is a transport.Set over epoll, as the engine has one.
type Set struct {
	epoll, bell int

	mu      sync.Mutex
	watched map[int]uint32
}

// NewSet makes a set that is closed when the test ends, after everything
// that was registered for cleaning up later.
func NewSet(t testing.TB) *Set {
	t.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatalf("epoll_create1: %v", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatalf("eventfd: %v", err)
	}
	s := &Set{epoll: epoll, bell: bell, watched: make(map[int]uint32)}
	if err := s.Watch(bell, unix.EPOLLIN); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func (s *Set) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoll < 0 {
		return
	}
	unix.Close(s.bell)
	unix.Close(s.epoll)
	s.epoll = -1
}

// Watch implements transport.Set.
func (s *Set) Watch(fd int, events uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
	if err == unix.EEXIST {
		err = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_MOD, fd, &ev)
	}
	if err != nil {
		return fmt.Errorf("epoll_ctl on descriptor %d: %w", fd, err)
	}
	s.watched[fd] = events
	return nil
}

// Unwatch implements transport.Set.
func (s *Set) Unwatch(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watched, fd)
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil) // closed already: gone from the set
}

// Wait blocks until a descriptor is ready, Wake was called, or the time has
// passed, and reports whether it was ended by something.
func (s *Set) Wait(timeout time.Duration) bool {
	var events [8]unix.EpollEvent
	ms := int((timeout + time.Millisecond - 1) / time.Millisecond)
	n, err := unix.EpollWait(s.epoll, events[:], max(0, ms))
	if err != nil {
		return true // EINTR: the caller looks again
	}
	for _, ev := range events[:n] {
		if int(ev.Fd) == s.bell {
			var b [8]byte
			_, _ = unix.Read(s.bell, b[:]) // EAGAIN: another waiter took it
		}
	}
	return n > 0
}

// Wake ends a Wait, or the next one.
func (s *Set) Wake() {
	b := [8]byte{1}
	_, _ = unix.Write(s.bell, b[:]) // EAGAIN only if the counter is full: it is readable then
}

// Watched is the number of descriptors in the set that are not its own.
func (s *Set) Watched() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watched) - 1
}
