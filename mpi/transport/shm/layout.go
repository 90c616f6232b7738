package shm

import (
	"sync/atomic"
	"unsafe"
)

// Layout of the segment that two ranks share. What stands here with "2 ×" is there once for each direction; direction 0 is
// from the lower rank to the higher. Everything but the base is backed by memory only when it is first used.
//
//	base     4 KiB             pairHead: counters of both directions
//	         2 × cells × 64 B  message cells
//	slots    2 × slots × 128 B claims on exposed memory; the direction is the exposer's
//	rings    2 × ringBytes     payloads that do not fit into a cell
const (
	cells     = 256
	cellMask  = cells - 1
	slots     = 256
	ringBytes = 2 << 20

	headBytes  = 4096
	cellsBytes = cells * cellBytes
	slotsBytes = slots * slotBytes

	cellsAt   = headBytes
	baseBytes = headBytes + 2*cellsBytes
	slotsAt   = baseBytes
	ringsAt   = slotsAt + 2*slotsBytes
	pairBytes = ringsAt + 2*ringBytes
)

// pairHead starts a pair's segment. Each of its words has cache lines of its own.
type pairHead struct {
	direction [2]struct {
		credit atomic.Uint64 // consumer: cells taken so far
		_      [120]byte     // two lines: they are fetched in pairs
		want   atomic.Uint32 // producer: waits for credit; the consumer clears it
		_      [124]byte
	}
}

// slot is the shared state of one exposure (see claim.go). Its two lines have
// different main writers.
type slot struct {
	state  atomic.Uint64 // a claim
	helped atomic.Uint64 // units that the exposing rank has written, helpFailed on top
	at     spot          // of the exposed memory, if the puller has mapped it
	pace   pace          // of the pull; the puller writes it before it frees the slot
	_      [24]byte
	read   atomic.Uint64 // units that the pulling rank has read
	_      [56]byte
}

const slotBytes = int(unsafe.Sizeof(slot{}))

// helpFailed in slot.helped: the exposing rank could not write to the puller.
const helpFailed = 1 << 63

func pairCells(mem []byte, direction int) *[cells]cell {
	return at[[cells]cell](mem, cellsAt+direction*cellsBytes)
}

func pairSlots(mem []byte, direction int) *[slots]slot {
	return at[[slots]slot](mem, slotsAt+direction*slotsBytes)
}

func ringOffset(direction int) int { return ringsAt + direction*ringBytes }

func pairRing(mem []byte, direction int) []byte {
	o := ringOffset(direction)
	return mem[o : o+ringBytes : o+ringBytes]
}
