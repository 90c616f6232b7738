package shm

import (
	"time"

	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/procmem"
)

// copier is one copy between this process's memory and a peer's, in a form that Sink.Outside can run without an allocation.
type copier struct {
	pid    int
	write  bool // to the peer; else from it
	local  []byte
	remote uintptr
	mapped []byte // the remote memory, if it is mapped here
	whole  int    // bytes of the transfer
	timed  bool
	took   time.Duration // if timed
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
	switch {
	case c.mapped != nil && c.write:
		c.within(c.mapped, c.local)
	case c.mapped != nil:
		c.within(c.local, c.mapped)
	case c.write:
		c.err = procmem.Write(c.pid, c.local, c.remote)
	default:
		c.err = procmem.Read(c.pid, c.local, c.remote)
	}
}

// within copies within this process.
func (c *copier) within(dst, src []byte) {
	c.err = nil
	var begun time.Time
	if c.timed {
		begun = time.Now()
	}
	memcopy.Piece(dst, src, c.whole, 2) // the sender's and the receiver's
	if c.timed {
		c.took = time.Since(begun)
	}
}
