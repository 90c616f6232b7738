package mpi

import (
	"fmt"
	"slices"
)

// What a rank knows of the others, how it learns that from its neighbours in the tree, and passes it on.

// fact is what spreads over the tree.
type fact struct {
	Rank int
	Left bool   `json:",omitempty"` // said goodbye
	Gone bool   `json:",omitempty"` // said goodbye, and ended before all had; without Left or Gone: lost
	Why  string `json:",omitempty"`
}

// learn takes a fact that came over an edge, or arose here (nil), and passes
// it on. Callers hold the lock.
func (t *tree) learn(f fact, from *edge) {
	if f.Rank < 0 || f.Rank >= t.self.Size {
		return
	}
	switch {
	case f.Gone:
		t.learnGone(f, from)
		return
	case t.left[f.Rank]:
		return
	}
	if _, known := t.lost[f.Rank]; known {
		return
	}
	if f.Rank == t.self.Rank && !f.Left {
		t.isolate(fmt.Sprintf("the others gave this rank up: %s", f.Why))
		return
	}
	delete(t.orphans, f.Rank) // a goodbye is a sign of life
	if f.Left {
		t.left[f.Rank] = true
	} else {
		t.lost[f.Rank] = f.Why
		t.giveUp(f.Rank)
	}
	t.spread(f, from)
	if e := t.edges[f.Rank]; e != nil && !f.Left {
		e.finish() // first tells the rank what is said of it, if it can still hear
		delete(t.edges, f.Rank)
	}
	if len(t.left)+len(t.lost) == t.self.Size {
		close(t.parted)
	}
	if !f.Left && t.parent == f.Rank {
		t.move()
	}
}

// learnGone takes the news that a rank is gone. A rank says goodbye and then waits until all have. If it ends before that, it
// is gone, and whoever waits for it must be told. A regular end is not mistaken for this: a rank closes its connections only
// after it has passed on the last goodbye, so its neighbours know that all have left before they see it close. Callers
// hold the lock.
func (t *tree) learnGone(f fact, from *edge) {
	if _, known := t.gone[f.Rank]; known || !t.left[f.Rank] || t.isParted() {
		return
	}
	if f.Rank == t.self.Rank {
		t.isolate("the others gave this rank up: " + f.Why)
		return
	}
	t.gone[f.Rank] = f.Why
	t.giveUp(f.Rank)
	t.spread(f, from)
}

// giveUp reports a rank, and ends the attempt to hang below it. Callers hold the lock.
func (t *tree) giveUp(rank int) {
	t.report(rank)
	if t.forsake != nil && t.target == rank {
		t.forsake()
	}
}

// spread tells a fact to all neighbours except the one that it came from. Callers hold the lock.
func (t *tree) spread(f fact, from *edge) {
	for _, e := range t.edges {
		if e != from {
			e.tell(f)
		}
	}
}

// givenUp reports whether this rank takes another for lost or gone. What such a rank says of others does not count. Callers
// hold the lock.
func (t *tree) givenUp(rank int) bool {
	_, lost := t.lost[rank]
	_, gone := t.gone[rank]
	return lost || gone
}

// isolate gives up every other rank that has not said goodbye: this one is cut off, or was given up. Callers hold the lock.
func (t *tree) isolate(why string) {
	if t.cutOff {
		return
	}
	t.cutOff = true
	t.log.Warn("this rank is cut off", "rank", t.self.Rank, "why", why)
	for rank := range t.self.Size {
		if rank == t.self.Rank || t.left[rank] {
			continue
		}
		if _, known := t.lost[rank]; !known {
			t.lost[rank] = why
			t.report(rank)
		}
	}
	for rank, e := range t.edges {
		e.finish()
		delete(t.edges, rank)
	}
	if !t.isParted() && len(t.left)+len(t.lost) >= t.self.Size-1 && t.left[t.self.Rank] {
		close(t.parted)
	}
}

func (t *tree) isParted() bool {
	select {
	case <-t.parted:
		return true
	default:
		return false
	}
}

// report queues a loss for delivery.
func (t *tree) report(rank int) {
	t.news = append(t.news, rank)
	select {
	case t.newsBell <- struct{}{}:
	default:
	}
}

// facts lists all that is known, for a new neighbour.
func (t *tree) facts() []fact {
	var all []fact
	for rank, why := range t.lost {
		all = append(all, fact{Rank: rank, Why: why})
	}
	for rank := range t.left {
		all = append(all, fact{Rank: rank, Left: true})
	}
	slices.SortFunc(all, func(a, b fact) int { return a.Rank - b.Rank })
	for rank, why := range t.gone { // after their goodbyes
		all = append(all, fact{Rank: rank, Gone: true, Why: why})
	}
	return all
}
