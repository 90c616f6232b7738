package shm

import "github.com/fisterra-hpc/fisterra/internal/procmem"

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

// copy moves c.local whole. A claim has mostBytes at most: see procmem.Read.
func (c *copier) copy() {
	if c.write {
		c.err = procmem.Write(c.pid, c.local, c.remote)
	} else {
		c.err = procmem.Read(c.pid, c.local, c.remote)
	}
}
