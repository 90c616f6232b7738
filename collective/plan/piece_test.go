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

// Data to be reduced travel between hosts in parts of the length that the problem gives, and within them in the usual ones.
func TestPartsBetweenHosts(t *testing.T) {
	const long = 4 * PartBytes
	nodes := NewNodes(4, func(r int) string { return []string{"a", "a", "b", "b"}[r] })
	seen := map[int]bool{}
	for rank := range 4 {
		p := &Problem{Kind: Reduce, Rank: rank, Size: 4, Count: 3 * long, ElemBytes: 1, Nodes: nodes, NetPartBytes: long}
		for _, s := range reduceBinomial(p).Steps {
			if s.Action != PutParts && s.Action != Fold {
				continue
			}
			want := PartBytes
			if nodes.Of[s.Peer] != nodes.Of[rank] {
				want = long
			}
			if seen[want] = true; s.Part != want {
				t.Errorf("rank %d: %v in parts of %d, want %d", rank, s, s.Part, want)
			}
		}
	}
	if len(seen) != 2 {
		t.Errorf("the plan has parts of %v only", seen)
	}
}
