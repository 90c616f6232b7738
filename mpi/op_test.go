package mpi

import (
	"testing"
	"unsafe"
)

// Of an op that is 256 bytes long the allocator has every one begin with a cache line. A short message uses what comes before sender.
func TestOpsBeginWithALine(t *testing.T) {
	if n := unsafe.Sizeof(op{}); n != 256 {
		t.Errorf("an op has %d bytes", n)
	}
	if at := unsafe.Offsetof(op{}.sender); at > 2*64 {
		t.Errorf("what a short message uses ends at %d", at)
	}
}
