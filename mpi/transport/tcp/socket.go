package tcp

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The sockets never block, so these calls bypass the Go scheduler's bookkeeping
// for system calls: it would take the processor away from a goroutine in the
// middle of a long copy.

func recvOnce(fd int, dst []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(len(dst)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func sendOnce(fd int, src []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func readvOnce(fd int, iov []unix.Iovec) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READV, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
	return int(n), errno
}

// sendvOnce gathers by sendmsg rather than writev, which would raise SIGPIPE.
func sendvOnce(fd int, iov []unix.Iovec) (int, syscall.Errno) {
	msg := unix.Msghdr{Iov: unsafe.SliceData(iov)}
	msg.SetIovlen(len(iov))
	n, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd),
		uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return int(n), errno
}

func setIovec(v *unix.Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}

// sharePort has the kernel choose the port of a socket that is bound to an address only when the socket is connected, so that
// connections to different peers may share a port. Otherwise each connection takes one of the host's ports for itself, of
// which the ranks of a large node need more than there are.
func sharePort(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // without it a smaller job still works
	})
}

// takeSocket tunes a connection and takes it out of Go's network poller. conn
// is closed; the descriptor is the caller's.
func (p *Provider) takeSocket(conn net.Conn) (int, error) {
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var failed error
	err = raw.Control(func(original uintptr) {
		if fd, failed = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0); failed == nil {
			failed = p.tune(fd)
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil && fd >= 0 {
		unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// tune makes both ends of a connection alike, the dialled and the accepted one. It turns off the keepalive probes that Go has
// turned on: a connection on which nothing is to be sent shall not end by itself, since the world finds out by PeerTimeout
// who is silent for too long. The socket's buffers are left to the kernel, which grows them as they fill: of fixed sizes from
// 128 KiB to 2 MiB none was quicker.
func (p *Provider) tune(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0); err != nil {
		return fmt.Errorf("SO_KEEPALIVE: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, p.congestion); err != nil {
		return fmt.Errorf("congestion control %q: %w", p.congestion, err)
	}
	return nil
}

// CongestionControl picks the algorithm: wanted, or if that is empty the one by the rule of Config.CongestionControl.
func CongestionControl(wanted string) (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("tcp: %w", err)
	}
	defer unix.Close(fd)
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", fmt.Errorf("tcp: congestion control: %w", err)
	}
	system := strings.TrimRight(name, "\x00")
	try := wanted
	if try == "" {
		if !strings.HasPrefix(system, "bbr") {
			return system, nil
		}
		try = "cubic"
	}
	err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, try)
	switch {
	case err == nil:
		return try, nil
	case wanted == "":
		return system, nil
	}
	known, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return "", fmt.Errorf("tcp: congestion control %q: %w (this host offers: %s)", wanted, err, strings.TrimSpace(string(known)))
}

// writable reports whether the socket takes a good deal more, or is broken. To ask takes no lock of the socket's. A write in
// vain would take one, and vie for it with whoever delivers the peer's acknowledgements; and a write as soon as there is any
// room finds little of it, which makes small segments.
func writable(fd int) bool {
	f := unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	var now unix.Timespec
	n, _, _ := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&f)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return n != 0
}
