package mpi

import (
	"testing"
	"unsafe"
)

// Of an op that is 256 bytes long the allocator has every one begin with a cache line. A short message uses what comes before the key.
func TestOpsBeginWithALine(t *testing.T) {
	if n := unsafe.Sizeof(op{}); n != 256 {
		t.Errorf("an op has %d bytes", n)
	}
	if at := unsafe.Offsetof(op{}.key); at > 3*64 {
		t.Errorf("what a short message uses ends at %d", at)
	}
}
