package mpi

import (
	"context"
	"fmt"
	"slices"
	"time"
)

var _ Membership = (*tree)(nil)

// Start implements Membership: losses, those since agree included, are
// delivered from one goroutine in the order in which they were learnt.
func (t *tree) Start(events MembershipEvents) {
	t.work.Go(func() {
		for {
			select {
			case <-t.newsBell:
			case <-t.ended:
				return
			}
			t.mu.Lock()
			news := t.news
			t.news = nil
			whys := make([]string, len(news))
			for i, rank := range news {
				whys[i] = t.lost[rank] + t.gone[rank] // one of them
			}
			t.mu.Unlock()
			for i, rank := range news {
				events.PeerLost(rank, whys[i])
			}
		}
	})
}

// AnnounceLost implements Membership.
func (t *tree) AnnounceLost(rank int, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rank != t.self.Rank && !t.closing {
		t.learn(fact{Rank: rank, Why: why}, nil)
	}
}

// Bye implements Membership. Its error names the ranks that have not said
// goodbye when ctx ends.
func (t *tree) Bye(ctx context.Context) error {
	t.mu.Lock()
	if !t.left[t.self.Rank] {
		t.learn(fact{Rank: t.self.Rank, Left: true}, nil)
	}
	t.mu.Unlock()
	select {
	case <-t.parted:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var missing []int
	for rank := range t.self.Size {
		if _, lost := t.lost[rank]; !lost && !t.left[rank] {
			missing = append(missing, rank)
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("waiting for the goodbye of %s: %w", rankList(missing), context.Cause(ctx))
}

// Abort implements Membership: it returns when the neighbours have been told, or
// after a second.
func (t *tree) Abort(code int, reason string) {
	t.mu.Lock()
	why := fmt.Sprintf("it aborted with exit code %d: %s", code, reason)
	edges := make([]*edge, 0, len(t.edges))
	for _, e := range t.edges {
		e.tell(fact{Rank: t.self.Rank, Why: why})
		e.finish()
		edges = append(edges, e)
	}
	t.closing = true
	t.mu.Unlock()
	timer := time.NewTimer(lastWait)
	defer timer.Stop()
	for _, e := range edges {
		select {
		case <-e.done:
		case <-timer.C:
			return
		}
	}
}

// Close implements Membership. What was said before still reaches the
// neighbours; it takes a second, two at the most, if they do not answer, and up to the peer timeout where
// the network does not carry it to them.
func (t *tree) Close() {
	t.mu.Lock()
	select {
	case <-t.ended:
		t.mu.Unlock()
		return
	default:
	}
	t.closing = true
	close(t.ended)
	for _, e := range t.edges {
		e.finish()
	}
	t.mu.Unlock()
	if t.door != nil {
		t.door.Close()
	}
	t.work.Wait()
}
