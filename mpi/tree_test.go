package mpi

import (
	"testing"
	"time"

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

// A rank that has said goodbye is missed like any other while not all have: when its host goes down with its parent's,
// nobody else notices.
func TestTreeMissesOrphansThatHaveLeft(t *testing.T) {
	const size, parent, orphan = treeFanOut + 2, 1, treeFanOut + 1
	parted := make(chan struct{})
	close(parted)
	for name, tc := range map[string]struct {
		parted chan struct{}
		away   bool // its connection to this rank has been closed
		late   bool // it says goodbye only when it is missed already
		want   bool
	}{
		"left":          {make(chan struct{}), false, false, true},
		"left late":     {make(chan struct{}), false, true, false},
		"away":          {make(chan struct{}), true, false, false},
		"all have left": {parted, false, false, false},
	} {
		tr := &tree{
			self: wire.Self{Rank: 0, Size: size}, timeout: 10 * time.Second, roster: &roster{},
			lost: map[int]string{}, left: map[int]bool{}, gone: map[int]string{}, away: map[int]bool{},
			orphans: map[int]time.Time{}, parted: tc.parted, newsBell: make(chan struct{}, 1),
		}
		for r := range size {
			tr.roster.Seats = append(tr.roster.Seats, seat{Member: Member{Rank: r, Position: r}})
			tr.byPosition = append(tr.byPosition, r)
			if r != 0 && r != orphan {
				tr.lost[r] = "its host went down"
			}
		}
		if tc.away {
			tr.away[orphan] = true
		}
		now := time.Now()
		if !tc.late {
			tr.left[orphan] = true
		}
		tr.checkOrphans(now)
		if tc.late { // a sign of life
			tr.learn(fact{Rank: orphan, Left: true}, nil)
		}
		tr.checkOrphans(now.Add(tr.timeout + tr.grace() + time.Millisecond))
		if _, gone := tr.gone[orphan]; gone != tc.want {
			t.Errorf("%s: gone %v, want %v", name, gone, tc.want)
		}
	}
}
