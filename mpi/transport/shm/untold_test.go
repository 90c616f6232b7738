package shm

import (
	"math/rand/v2"
	"testing"
)

// What a receiver may leave untold is never what a sender waits for: whatever has been sent and taken, the longest piece
// fits into a ring that cannot grow, with gaps in it or without. A sender that waited nevertheless would wait for ever.
func TestUntoldLeavesRoom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, most := range []uint32{firstRing, gapRing} {
		untoldLeavesRoom(t, r, most)
	}
}

func untoldLeavesRoom(t *testing.T, r *rand.Rand, most uint32) {
	ring := byteRing{most: most, more: func(from, to uint32) error { return nil }}
	var sent, taken, credited uint64
	untold := 0
	var sizes [cells]int
	take := func() { // as drain does
		untold += sizes[taken&cellMask]
		if taken++; taken-credited >= creditCells || untold >= creditBytes {
			credited, untold = taken, 0
		}
	}
	for range 1_000_000 {
		n := 1 + r.IntN(eagerBytes)
		switch r.IntN(4) {
		case 0:
			n = 1 + r.IntN(2*pieceAlign)
		case 1:
			n = eagerBytes - r.IntN(pieceAlign)
		}
		if sent-credited == cells {
			for taken < sent {
				take()
			}
			ring.release(credited)
		}
		_, ok := ring.alloc(n, sent)
		for !ok && taken < sent {
			take()
			ring.release(credited)
			_, ok = ring.alloc(n, sent)
		}
		if !ok {
			t.Fatalf("no room for %d B in %d, though all is taken: %d cells and %d B are untold", n, most, taken-credited, untold)
		}
		sizes[sent&cellMask] = n
		sent++
	}
}
