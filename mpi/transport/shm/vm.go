package shm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// copier is one copy between the memory of this process and of a peer's, in a
// form that Sink.Outside can run without an allocation.
type copier struct {
	pid    int
	write  bool // to the peer; else from it
	local  []byte
	remote uintptr
	err    error
	units  uint32 // what was claimed
	run    func() // copy, bound once
	next   *copier
}

func newCopier() *copier {
	c := &copier{}
	c.run = c.copy
	return c
}

// copy moves c.local whole. The call does not tell the scheduler: a claim is
// short, and a processor taken away meanwhile costs more than it gives.
func (c *copier) copy() {
	call := uintptr(unix.SYS_PROCESS_VM_READV)
	if c.write {
		call = unix.SYS_PROCESS_VM_WRITEV
	}
	c.err = nil
	local := unix.Iovec{}
	remote := unix.RemoteIovec{Base: c.remote}
	for buf := c.local; len(buf) > 0; {
		local.Base = &buf[0]
		local.SetLen(len(buf))
		remote.Len = len(buf)
		n, _, errno := unix.RawSyscall6(call, uintptr(c.pid),
			uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
		switch {
		case errno == unix.EINTR || errno == unix.EAGAIN:
		case errno != 0:
			c.err = fmt.Errorf("%s of %d bytes at process %d: %w", c.name(), len(c.local), c.pid, errno)
			return
		case n == 0:
			c.err = fmt.Errorf("%s at process %d: nothing was copied", c.name(), c.pid)
			return
		default:
			buf = buf[n:]
			remote.Base += n
		}
	}
}

func (c *copier) name() string {
	if c.write {
		return "process_vm_writev"
	}
	return "process_vm_readv"
}

// addressOf is where a buffer lies, for a peer to read or write.
func addressOf(buf []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(buf))) }
