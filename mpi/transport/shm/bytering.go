package shm

import "github.com/fisterra-hpc/fisterra/internal/memcopy"

// byteRing hands out contiguous pieces of the memory that carries payloads too long for a cell. Only the sender knows it: a
// cell names its piece, and the piece is free again when that cell has been credited. The ring starts without memory. When it
// is full, or has to leave gaps, it grows: it goes on into new memory where it would have wrapped. While pieces are live it
// does not turn back to memory that is free, but goes on through the rest: what the peer read last lies in the peer's caches
// and is dearer to write than what has left them. Of 2 MiB most has.
type byteRing struct {
	more func(from, to uint32) error // backs the ring with memory up to a new size
	most uint32                      // the largest size

	size, write uint32
	grow        bool  // it was full: go on instead of wrapping
	stuck       error // there was no more memory: stay at this size

	// The live pieces, oldest first: at most one per cell.
	first, count uint32
	live         [cells]piece
}

type piece struct {
	cell  uint64 // position of the cell that carries it
	start uint32
}

const (
	pieceAlign = 64
	// gapRing is the least size of a ring that leaves gaps between its pieces (memcopy.ReadAheadBytes). gapFrom is the least
	// length of a piece that a gap follows: gaps behind shorter ones gained nothing.
	gapRing = 256 << 10
	gapFrom = 256
)

// gapAfter is how many bytes stay free behind a piece of n bytes, in a ring that may grow to most bytes.
func gapAfter(n int, most uint32) uint32 {
	if n < gapFrom || most < gapRing {
		return 0
	}
	return memcopy.ReadAheadBytes
}

// release frees the pieces of cells before credit.
func (b *byteRing) release(credit uint64) {
	for b.count > 0 && b.live[b.first&cellMask].cell < credit {
		b.first++
		b.count--
	}
}

// alloc finds n bytes, more than none, for the payload of the given cell.
func (b *byteRing) alloc(n int, cell uint64) (offset uint32, ok bool) {
	need := (uint32(n) + pieceAlign - 1) &^ (pieceAlign - 1)
	if b.count == 0 {
		b.write = 0
	}
	if gap := gapAfter(n, b.most); gap > 0 {
		if b.size < gapRing && b.stuck == nil && b.unwrapped() && (b.size > 0 || b.enlarge(firstRing)) {
			b.enlarge(gapRing)
		}
		if b.size >= gapRing {
			need += gap
		}
	}
	offset, ok = b.place(need)
	for !ok && (b.grow || b.count == 0) && b.size < b.most && b.stuck == nil && b.unwrapped() {
		if !b.enlarge(max(4*b.size, firstRing)) {
			break
		}
		offset, ok = b.place(need)
	}
	if !ok {
		b.grow = true
		return 0, false
	}
	b.live[(b.first+b.count)&cellMask] = piece{cell, offset}
	b.count++
	b.write = offset + need
	return offset, true
}

// enlarge backs the ring with memory up to a new size, or the largest, and reports whether there was any.
func (b *byteRing) enlarge(to uint32) bool {
	to = min(to, b.most)
	if b.stuck = b.more(b.size, to); b.stuck != nil {
		return false
	}
	b.size, b.grow = to, false
	return true
}

// ahead is the part of the ring's memory where the next payload of n bytes will lie; nil if the ring turns back before it.
func (b *byteRing) ahead(mem []byte, n int) []byte {
	if uint64(b.write)+uint64(n) > uint64(b.size) {
		return nil
	}
	return mem[b.write:][:n]
}

const (
	// firstRing is the ring's size once it is used.
	firstRing = 64 << 10
	// hostRings bounds the memory of the rings of all pairs of a host together; no ring is made smaller than firstRing for
	// it.
	hostRings = 256 << 20
)

// ringLimit is how large the ring to each of so many peers may become, when every rank has a
// processor.
func ringLimit(peers int) uint32 {
	n := ringBytes
	for n > firstRing && n*peers*(peers+1) > hostRings {
		n /= 2
	}
	return uint32(n)
}

// unwrapped: the live pieces do not pass the end of the ring.
func (b *byteRing) unwrapped() bool {
	return b.count == 0 || b.live[b.first&cellMask].start < b.write
}

func (b *byteRing) place(need uint32) (offset uint32, ok bool) {
	if b.count == 0 {
		return 0, need <= b.size
	}
	tail := b.live[b.first&cellMask].start
	switch {
	case tail >= b.write: // wrapped: the bytes between the two are free, and are never all used
		return b.write, need < tail-b.write
	case need <= b.size-b.write:
		return b.write, true
	case b.grow && b.size < b.most && b.stuck == nil:
		return 0, false // the caller grows the ring here
	default:
		return 0, need < tail
	}
}
