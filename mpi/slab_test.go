package mpi

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
)

// TestEmptySlab: who has mapped what is freed finds zeros there, but for huge pages, which he could not
// have again.
func TestEmptySlab(t *testing.T) {
	for pages, want := range map[shm.Pages]byte{shm.OrdinaryPages: 0, shm.HugePages: 7} {
		s, err := makeSlab(1, unix.Getpagesize(), shm.OrdinaryPages)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		s.pages, s.handles[nil], s.mem[0] = pages, nil, 7 // the machine may have no huge pages
		if s.empty(); s.mem[0] != want {
			t.Errorf("pages of kind %d: found %d, want %d", pages, s.mem[0], want)
		}
	}
}
