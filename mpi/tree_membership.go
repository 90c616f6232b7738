package mpi

import (
	"context"
	"fmt"
	"time"
)

var _ Membership = (*tree)(nil)

// Start implements Membership: losses, those since agree included, are
// delivered one by one in the order in which they were learnt.
func (t *tree) Start(events MembershipEvents) {
	t.delivery.Lock()
	t.events = events
	t.delivery.Unlock()
	t.work.Go(func() {
		for {
			select {
			case <-t.newsBell:
			case <-t.ended:
				return
			}
			t.deliver()
		}
	})
}

// deliver delivers the losses that have been learnt and not yet delivered. When it returns, all of them have been, also those
// that another goroutine had begun to deliver.
func (t *tree) deliver() {
	t.delivery.Lock()
	defer t.delivery.Unlock()
	if t.events == nil {
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
		t.events.PeerLost(rank, whys[i])
	}
}

// AnnounceLost implements Membership.
func (t *tree) AnnounceLost(rank int, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closing:
	case rank != t.self.Rank:
		t.learn(fact{Rank: rank, Why: why}, nil)
	case !t.cutOff:
		t.spread(fact{Rank: rank, Why: why}, nil)
		t.isolate("this rank has given itself up: " + why)
	}
}

// Bye implements Membership: when it returns nil, every rank that has not said goodbye has been delivered as lost. Its error
// names the living ranks that have not said goodbye when ctx ends.
func (t *tree) Bye(ctx context.Context) error {
	t.mu.Lock()
	if !t.left[t.self.Rank] {
		t.learn(fact{Rank: t.self.Rank, Left: true}, nil)
	}
	t.mu.Unlock()
	select {
	case <-t.parted:
	case <-ctx.Done():
		if missing := t.missing(); missing != nil {
			return fmt.Errorf("waiting for the goodbye of %s: %w", rankList(missing), context.Cause(ctx))
		}
	}
	t.deliver()
	return nil
}

// missing lists the living ranks that have not said goodbye.
func (t *tree) missing() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	var missing []int
	for rank := range t.self.Size {
		if _, lost := t.lost[rank]; !lost && !t.left[rank] {
			missing = append(missing, rank)
		}
	}
	return missing
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

// Close implements Membership. What was said before still reaches the neighbours. If they do not answer, Close takes a
// second, two at the most; if the network does not carry the words to them, up to the peer timeout.
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
