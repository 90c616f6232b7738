package shm

import (
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
