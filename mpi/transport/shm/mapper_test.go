package shm

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMapLater: a rank that has answered a peer can ask it long after, when
// the time that the answer was given is over.
func TestMapLater(t *testing.T) {
	const size = 1 << 16
	rs := openWorld(t, 2, nil)
	handles := make([][]byte, len(rs))
	for i, r := range rs {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			t.Fatal(err)
		}
		if handles[i], err = r.Export(fd, size); err != nil {
			t.Fatal(err)
		}
	}
	for pass := range 2 {
		if pass > 0 {
			<-time.After(1100 * time.Millisecond) // longer than answer's deadline: nothing tells of it
		}
		for i, r := range rs {
			mem, err := r.Import(t.Context(), 1-i, handles[1-i])
			if err != nil || len(mem) < size {
				t.Fatalf("pass %d: rank %d maps %d B of rank %d: %v", pass, i, len(mem), 1-i, err)
			}
			if err := unix.Munmap(mem); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestMapAtTheEnd: the provider may be closed when an Import is about to look at its link.
func TestMapAtTheEnd(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	met, err := rs[0].want(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := rs[0].Close(); err != nil {
		t.Fatal(err)
	}
	if l, err := rs[0].outcome(met); l != nil || !errors.Is(err, errClosed) {
		t.Errorf("link %v and error %v of a closed provider, want %v", l, err, errClosed)
	}
	if _, err := rs[0].Import(t.Context(), 1, make([]byte, handleBytes)); !errors.Is(err, errClosed) {
		t.Errorf("an Import of a closed provider: %v, want %v", err, errClosed)
	}
}

// TestAskedAtTheEnd: a peer's last packet may be handled when the link is being closed because the peer is lost.
func TestAskedAtTheEnd(t *testing.T) {
	p := openWorld(t, 2, nil)[0]
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket"}) // a name of the kernel's choice
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.DialUnix("unixpacket", nil, listener.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(conn)
	l.close()
	ask := binary.BigEndian.AppendUint64([]byte{packetAsk}, 1)
	if err := p.packet(l, append(ask, make([]byte, handleBytes)...), nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a question on a closed link: %v, want %v", err, net.ErrClosed)
	}
}
