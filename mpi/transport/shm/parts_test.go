package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// partExpose lets its peer pull a buffer again and again.
func partExpose(r *testRank, in *bufio.Reader) error {
	n, err := readNumber(in)
	if err != nil {
		return err
	}
	buf, err := r.buffer(n, os.Getenv(memoryVariable))
	if err != nil {
		return err
	}
	copy(buf, pattern(n, 5))
	var key transport.Key
	var ok bool
	for len(r.lost) == 0 {
		if err := r.until(func() bool { key, ok = r.Expose(0, buf); return ok || len(r.lost) > 0 }); err != nil || !ok {
			return err
		}
		fins := r.fins
		if err := r.offer(0, &transport.Header{Kind: kindRTS, Bytes: uint64(n)}, key[:]); err != nil {
			return nil // the peer has seen enough
		}
		if err := r.until(func() bool { return r.fins > fins || len(r.lost) > 0 }); err != nil {
			return err
		}
		if err := r.until(func() bool { return r.Withdraw(0, key) || len(r.lost) > 0 }); err != nil {
			return err
		}
	}
	return nil
}

// partPull pulls whatever it is offered.
func partPull(r *testRank, in *bufio.Reader) error {
	n, err := readNumber(in)
	if err != nil {
		return err
	}
	buf, err := r.buffer(n, os.Getenv(memoryVariable))
	if err != nil {
		return err
	}
	for len(r.lost) == 0 {
		if err := r.recv(buf); err != nil {
			return err
		}
	}
	return nil
}

// partFlood sends until there is no room, says so, and sends on until the peer ends.
func partFlood(r *testRank, _ *bufio.Reader) error {
	const most = 1 << 20 // far more than there is room for
	payload := pattern(3000, 9)
	h := transport.Header{Kind: kindEager, Bytes: uint64(len(payload))}
	if err := r.until(func() bool { r.endpoint(0).meet(); return r.endpoint(0).state == up || len(r.lost) > 0 }); err != nil {
		return err
	}
	for h.Token < most && r.Send(0, &h, payload) == transport.Sent {
		h.Token++
	}
	if h.Token == most || len(r.lost) > 0 {
		return fmt.Errorf("not held up within %d messages; lost: %v", h.Token, r.lost)
	}
	fmt.Println("held up")
	for ; ; h.Token++ {
		switch err := r.offer(0, &h, payload); {
		case errors.Is(r.lost[0], errHangup):
			return nil
		case err != nil:
			return err
		}
	}
}

// partLimit is a process that may not make files, and so no shared memory,
// larger than a pair needs at first.
func partLimit(r *testRank, _ *bufio.Reader) error {
	for _, n := range []int{4096, 0} { // less than a segment; then see that it was the limit
		limit := unix.Rlimit{Cur: uint64(n), Max: unix.RLIM_INFINITY}
		if n == 0 {
			limit.Cur = unix.RLIM_INFINITY
		}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
			return err
		}
		fd, err := CreateSegment("fisterra-limit", pairBytes, baseBytes, OrdinaryPages)
		if n > 0 && !errors.Is(err, unix.EFBIG) {
			return fmt.Errorf("a segment under a limit of %d bytes: %v", n, err)
		}
		if n == 0 && err != nil {
			return err
		}
		unix.Close(fd)
	}
	fmt.Println("refused")
	return nil
}

// partDoorbell makes doorbells as a process that may not open the descriptors of one.
func partDoorbell(*testRank, *bufio.Reader) error {
	for left := range 2 { // of the bell and of the board
		err := withDescriptors(left, func() error {
			d, err := newDoorbell()
			if err == nil {
				d.close()
			}
			return err
		})
		if !errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("a doorbell of %d descriptors: %v", left, err)
		}
	}
	fmt.Println("refused")
	return nil
}

const importBytes = 1 << 16

// partImport maps a segment of its peer, the second time without a descriptor for it.
func partImport(r *testRank, in *bufio.Reader) error {
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	handle, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	get := func() error {
		mem, err := r.Import(context.Background(), 0, handle)
		if err != nil {
			return err
		}
		return Unmap(mem)
	}
	if err := get(); err != nil {
		return err
	}
	if err := withDescriptors(0, get); !errors.Is(err, errNoDescriptor) {
		return fmt.Errorf("mapping without a descriptor: %v", err)
	}
	if err := get(); err != nil {
		return err
	}
	fmt.Println("mapped")
	return nil
}

// withDescriptors runs work in a process that may open left more descriptors, and again if that works: a descriptor that
// another goroutine has given back meanwhile is one more.
func withDescriptors(left int, work func() error) error {
	const tries = 20
	for range tries {
		if err := limitDescriptors(left, work); err != nil {
			return err
		}
	}
	return nil
}

func limitDescriptors(left int, work func() error) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	free, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // the lowest number that is free
	if err != nil {
		return err
	}
	unix.Close(free)
	limit := unix.Rlimit{Cur: uint64(free + left), Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	err = work()
	return errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
}
