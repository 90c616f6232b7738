package mpi

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// Only a rank that is known to be lost is refused, which it takes for its own end. One that comes to a rank which
// leaves, or has been cut off, tries again until it hears of that.
func TestTreeAdmits(t *testing.T) {
	const lost, living, self = 1, 2, 3
	for name, tc := range map[string]struct {
		tree *tree
		rank int
		want wire.Verdict
	}{
		"living":            {&tree{}, living, wire.Admitted},
		"lost":              {&tree{}, lost, wire.Refused},
		"itself":            {&tree{}, self, wire.Refused},
		"leaving":           {&tree{closing: true}, living, wire.Busy},
		"cut off":           {&tree{cutOff: true}, living, wire.Busy},
		"cut off from lost": {&tree{cutOff: true}, lost, wire.Busy}, // it holds all others for lost
	} {
		tc.tree.self = wire.Self{Rank: self, Size: 4}
		tc.tree.lost = map[int]string{lost: "silent"}
		if got := tc.tree.admit(wire.Peer{Rank: tc.rank, Purpose: wire.Tree}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
