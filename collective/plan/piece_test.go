package plan

import "testing"

// The pieces of a vector follow one another, and where there are several none is shorter than half a part.
func TestPiecesAreWhole(t *testing.T) {
	for _, part := range []int{1, 2, 7, 64} {
		for n := range 6*part + 3 {
			s := &Step{N: n, Part: part}
			at := 0
			for i := range s.Parts() {
				from, size := s.Piece(i)
				if from != at || size > part || s.Parts() > 1 && size < part/2 {
					t.Fatalf("piece %d of %d elements in parts of %d: %d from %d on, want half a part to a whole one from %d on", i, n, part, size, from, at)
				}
				at += size
			}
			if at != n {
				t.Fatalf("the pieces of %d elements in parts of %d have %d", n, part, at)
			}
		}
	}
}
