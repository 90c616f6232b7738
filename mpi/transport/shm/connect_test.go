package shm

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestManyStrangers: a connection waits while more than a rank handles at once have not proved
// who they are.
func TestManyStrangers(t *testing.T) {
	r := openRank(t, 0, 2, nil)
	other := openRank(t, 1, 2, nil)
	dial := func() *net.UnixConn {
		conn, err := other.reach(r.address, time.Now().Add(patience))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	first := dial()
	for range r.strangers() - 1 {
		dial()
	}
	for deadline := time.Now().Add(patience); ; {
		n := 0
		r.conns.Range(func(any, any) bool { n++; return true })
		if n == r.strangers() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d connections have been accepted", n, r.strangers())
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	late := party{conn: dial(), cfg: &other.cfg}
	first.Close()
	hello := late.hello(0)
	hello.Size++
	if err := late.write(pack(hello)); err != nil {
		t.Fatal(err)
	}
	answer, _, err := late.read(0)
	if err != nil || answer[0] != statusRefused || !strings.Contains(string(answer), "does not belong") {
		t.Errorf("a connection above the bound is answered %q, %v", answer, err)
	}
}

// TestFullBacklog: a peer that has yet to accept others is waited for.
func TestFullBacklog(t *testing.T) {
	r := openRank(t, 0, 2, nil)
	to, err := newAddress()
	if err != nil {
		t.Fatal(err)
	}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	listener := socket()
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrUnix{Name: to.socket()}), unix.Listen(listener, 0)); err != nil {
		t.Fatal(err)
	}
	full := unix.Connect(socket(), &unix.SockaddrUnix{Name: to.socket()})
	for full == nil {
		full = unix.Connect(socket(), &unix.SockaddrUnix{Name: to.socket()})
	}
	if !errors.Is(full, unix.EAGAIN) {
		t.Fatal(full)
	}
	if _, err := r.reach(to, time.Now().Add(20*time.Millisecond)); err == nil || errors.Is(err, unix.EAGAIN) {
		t.Errorf("nobody accepts: %v", err)
	}
	reached := make(chan error, 1)
	go func() {
		conn, err := r.reach(to, time.Now().Add(patience))
		if err == nil {
			conn.Close()
		}
		reached <- err
	}()
	if fd, _, err := unix.Accept(listener); err != nil {
		t.Fatal(err)
	} else {
		unix.Close(fd)
	}
	if err := <-reached; err != nil {
		t.Errorf("one was accepted: %v", err)
	}
	r.cancel()
	if _, err := r.reach(to, time.Now().Add(patience)); !errors.Is(err, context.Canceled) {
		t.Errorf("the provider is closed: %v", err)
	}
}
