package mpi

import (
	"fmt"
	"time"
)

// interval is the pause between two signs of life; 0: none are sent. It is a second at most, because of outages of the
// network: TCP doubles the pauses between its attempts to send, so the sooner the first attempt, the less of the peer
// timeout has passed when one of them finds the network back.
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
		if t.left[rank] { // learn does not close the connection to a rank that has said goodbye
			e.finish() // first tells the rank what is said of it, if it can still hear
		}
	}
}

// checkOrphans looks for ranks that should hang below this one and have not
// come: its own children, and at the lowest living position also the children of ranks that are
// lost. Ranks that have said goodbye are looked for, too, until all ranks have. Nobody else would notice a host that
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
		// The rank may take lastWait to close a connection whose end nobody confirms; only then it looks for a new parent.
		if silence := now.Sub(since); silence > t.timeout+max(t.grace(), 2*lastWait) {
			after := "since the ranks met"
			if orphan {
				after = fmt.Sprintf("since rank %d was lost (%s)", parent, why)
			}
			t.learn(fact{Rank: rank, Gone: t.left[rank], Why: fmt.Sprintf("no sign of life for %v, %s", silence.Round(100*time.Millisecond), after)}, nil)
		}
	}
}
