package mpi

import (
	"fmt"
	"time"
)

// interval is the pause between two signs of life; 0: none are sent. It is a second at most, for the sake of outages
// of the network: TCP doubles the pause between its attempts, and the sooner the first of them the
// less of the timeout is over when one meets the end of the outage.
func (t *tree) interval() time.Duration { return min(t.timeout/5, time.Second) }

// watch looks for silent neighbours, and for ranks that should have come here.
func (t *tree) watch() {
	every := t.interval()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ticker.C:
		case <-t.ended:
			return
		}
		now := time.Now()
		gap := now.Sub(last)
		last = now
		t.mu.Lock()
		if gap > every+t.timeout/2 {
			// This process itself stood still: it has missed the others' signs of life.
			t.log.Warn("this rank was suspended; peer timers restart", "rank", t.self.Rank, "for", gap.Round(time.Millisecond))
			for _, e := range t.edges {
				e.heard()
			}
			clear(t.orphans)
		}
		t.checkNeighbours()
		t.checkOrphans(now)
		t.mu.Unlock()
	}
}

// checkNeighbours declares silent ones lost. Callers hold the lock.
func (t *tree) checkNeighbours() {
	for rank, e := range t.edges {
		silence := e.silence()
		if silence <= t.timeout || e.last {
			continue
		}
		t.learn(fact{Rank: rank, Gone: t.left[rank], Why: fmt.Sprintf("no sign of life for %v (peer timeout %v)", silence.Round(100*time.Millisecond), t.timeout)}, nil)
		if t.left[rank] { // learn leaves the connections of those
			e.finish() // tells it what is said of it, if it can still hear
		}
	}
}

// checkOrphans looks for ranks that should hang below this one and have not
// come: its own children, and at the lowest living position those whose parent is
// lost; until all have said goodbye, those that have, too. Nobody else would notice a host that
// went down with a parent and its children. Callers hold the lock.
func (t *tree) checkOrphans(now time.Time) {
	if t.cutOff || t.closing {
		return
	}
	lowest := t.lowest() == t.self.Rank
	for rank := range t.self.Size {
		if t.givenUp(rank) || t.away[rank] || rank == t.self.Rank || t.edges[rank] != nil || t.left[rank] && t.isParted() {
			continue
		}
		parent := t.parentOf(rank)
		why, orphan := t.lost[parent]
		if !orphan {
			why, orphan = t.gone[parent]
		}
		if parent != t.self.Rank && !(lowest && orphan) {
			continue
		}
		since, waiting := t.orphans[rank]
		if !waiting {
			t.orphans[rank] = now
			continue
		}
		// Connections whose end nobody confirms are closed only after lastWait, and then it looks for another parent.
		if silence := now.Sub(since); silence > t.timeout+max(t.grace(), 2*lastWait) {
			after := "since the ranks met"
			if orphan {
				after = fmt.Sprintf("since rank %d was lost (%s)", parent, why)
			}
			t.learn(fact{Rank: rank, Gone: t.left[rank], Why: fmt.Sprintf("no sign of life for %v, %s", silence.Round(100*time.Millisecond), after)}, nil)
		}
	}
}
