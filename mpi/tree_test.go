package mpi

import (
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
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

// TestTreeClosesBesideDeafNeighbours has a neighbour that reads nothing, in the middle of what it is told.
func TestTreeClosesBesideDeafNeighbours(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(*tree)
	}{
		{"a neighbour to the end", func(*tree) {}},
		{"given up before", func(tr *tree) { tr.learn(fact{Rank: 1, Why: "it is silent"}, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			here, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer here.Close()
			there, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer there.Close()
			tr := treeOf(2)
			tr.mu.Lock()
			tr.addEdge(here, 1).tell(fact{Rank: 1, Why: strings.Repeat("more than any socket takes ", 1<<20)})
			tr.mu.Unlock()
			if _, err := there.Read(make([]byte, 1)); err != nil { // it is being told
				t.Fatal(err)
			}
			tr.mu.Lock()
			c.before(tr)
			tr.mu.Unlock()
			closed := make(chan struct{})
			go func() {
				tr.Close()
				close(closed)
			}()
			select {
			case <-closed:
			case <-time.After(patience):
				t.Fatal("Close waits for a neighbour that does not read")
			}
		})
	}
}

// treeOf is rank 0's part of a tree that knows of no other rank, without heartbeats.
func treeOf(size int) *tree {
	return &tree{
		self: wire.Self{Size: size}, log: slog.New(slog.DiscardHandler), parent: -1,
		ended: make(chan struct{}), parted: make(chan struct{}), newsBell: make(chan struct{}, 1),
		lost: map[int]string{}, left: map[int]bool{}, away: map[int]bool{}, edges: map[int]*edge{}, orphans: map[int]time.Time{},
	}
}

// A rank that was given up while it stood still takes nobody with it: it may have heard nothing of
// those that live.
func TestTreeDoubtsTheLost(t *testing.T) {
	tr := treeOf(5)
	e := &edge{t: tr, rank: 2, bell: make(chan struct{}, 1)}
	say := func(facts ...fact) {
		t.Helper()
		if err := tr.take(e, frameFacts, encodeJSON(facts)); err != nil {
			t.Fatal(err)
		}
	}
	say(fact{Rank: 1, Why: "it aborted"})
	tr.mu.Lock()
	tr.learn(fact{Rank: 2, Why: "no sign of life"}, nil)
	tr.mu.Unlock()
	say(fact{Rank: 0, Why: "no sign of life"}, fact{Rank: 3, Why: "no sign of life"}, fact{Rank: 4, Left: true})
	if _, lost := tr.lost[3]; lost || tr.cutOff || len(tr.lost) != 2 || !tr.left[4] {
		t.Errorf("lost %v, left %v, cut off: %v; want ranks 1 and 2 lost, and 4 left", tr.lost, tr.left, tr.cutOff)
	}
}

// losses counts those that a membership has delivered.
type losses struct{ n atomic.Int32 }

func (l *losses) PeerLost(int, string) { l.n.Add(1) }

// A goodbye that does not wait for the lost has told of them: what ends afterwards does not pass for a regular end.
func TestTreeByeDeliversLosses(t *testing.T) {
	const rounds = 100 // the loss would come late in most
	for range rounds {
		tr := &tree{
			self: wire.Self{Rank: 0, Size: 2}, lost: map[int]string{}, left: map[int]bool{}, gone: map[int]string{},
			parent: -1, ended: make(chan struct{}), parted: make(chan struct{}), newsBell: make(chan struct{}, 1),
		}
		var l losses
		tr.Start(&l)
		tr.AnnounceLost(1, "silent")
		if err := tr.Bye(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := l.n.Load(); n != 1 {
			t.Fatalf("%d losses have been delivered, want 1", n)
		}
		tr.Close()
		if n := l.n.Load(); n != 1 {
			t.Fatalf("%d losses in the end, want 1", n)
		}
	}
}
