package mpitest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// shift sends a value to the next rank of a communicator and compares what
// comes from the one before.
func shift(ctx context.Context, c *mpi.Comm, tag, value int, want func(left int) int) error {
	right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	got := []int{-1}
	if _, err := mpi.Sendrecv(ctx, c, []int{value}, right, tag, got, left, tag); err != nil {
		return fmt.Errorf("%s: %w", c.Name(), err)
	}
	if got[0] != want(left) {
		return fmt.Errorf("%s: rank %d got %d from rank %d, want %d", c.Name(), c.Rank(), got[0], left, want(left))
	}
	return nil
}

// checkDup: the same ranks, messages of their own.
func checkDup(ctx context.Context, c *mpi.Comm) error {
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	if d.Size() != c.Size() || d.Rank() != c.Rank() || d.Name() == c.Name() {
		return fmt.Errorf("%v of %v", d, c)
	}
	right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	// The same destination and tag on both; received in the other order, by wildcards.
	rs := []mpi.Request{mpi.Isend(c, []int{1}, right, 0), mpi.Isend(d, []int{2}, right, 0)}
	got := []int{0}
	if s, err := mpi.Recv(ctx, d, got, mpi.AnySource, mpi.AnyTag); err != nil || got[0] != 2 || s.Source != left {
		return fmt.Errorf("on the duplicate: %d from %d, %w", got[0], s.Source, err)
	}
	if s, err := mpi.Recv(ctx, c, got, mpi.AnySource, mpi.AnyTag); err != nil || got[0] != 1 || s.Source != left {
		return fmt.Errorf("on the original: %d from %d, %w", got[0], s.Source, err)
	}
	if err := mpi.WaitAll(ctx, rs); err != nil {
		return err
	}
	e, err := d.Dup(ctx)
	if err != nil {
		return err
	}
	d.Free()
	d.Free() // once more is nothing
	for what, err := range map[string]error{
		"send": mpi.Send(ctx, d, got, right, 0), "recv": wait(ctx, mpi.Irecv(d, got, left, 0)),
	} {
		var at *mpi.Error
		if !errors.Is(err, mpi.ErrClosed) || !errors.As(err, &at) || at.Comm != d.Name() {
			return fmt.Errorf("%s on a freed communicator: %v", what, err)
		}
	}
	return shift(ctx, e, 1, c.Rank(), func(left int) int { return left })
}

// checkSplit groups ranks by color, in the order of keys, then of ranks.
func checkSplit(ctx context.Context, c *mpi.Comm) error {
	color := c.Rank() % 3
	if color == 2 {
		color = mpi.Undefined
	}
	s, err := c.Split(ctx, color, -c.Rank())
	if err != nil {
		return err
	}
	if color == mpi.Undefined {
		if s != nil {
			return fmt.Errorf("no color, but a communicator: %v", s)
		}
		return nil
	}
	var members []int // backwards by key
	for r := c.Size() - 1; r >= 0; r-- {
		if r%3 == color {
			members = append(members, r)
		}
	}
	if s.Size() != len(members) {
		return fmt.Errorf("%v, want %d members", s, len(members))
	}
	for r, w := range members {
		if s.WorldRank(r) != w || s.RankOf(w) != r || s.Host(r) != c.Host(w) {
			return fmt.Errorf("member %d is world rank %d on %s, want %d on %s", r, s.WorldRank(r), s.Host(r), w, c.Host(w))
		}
		if w == c.Rank() && s.Rank() != r {
			return fmt.Errorf("this rank is %d, want %d", s.Rank(), r)
		}
	}
	for w := range c.Size() {
		if (w%3 != color) != (s.RankOf(w) < 0) {
			return fmt.Errorf("world rank %d is rank %d", w, s.RankOf(w))
		}
	}
	if err := shift(ctx, s, 0, c.Rank(), func(left int) int { return members[left] }); err != nil {
		return err
	}
	if _, err := mpi.Recv(ctx, s, []int{0}, s.Size(), 0); !errors.Is(err, mpi.ErrRank) {
		return fmt.Errorf("rank beyond the part: %v", err)
	}
	// Equal keys: by rank.
	e, err := s.Split(ctx, 5, 1)
	if err != nil {
		return err
	}
	if e.Rank() != s.Rank() || e.Size() != s.Size() {
		return fmt.Errorf("equal keys: %v of %v", e, s)
	}
	return nil
}

// checkSplitAgain makes parts of parts; statuses name ranks of the part.
func checkSplitAgain(ctx context.Context, c *mpi.Comm) error {
	half, err := c.Split(ctx, c.Rank()/3, c.Rank())
	if err != nil {
		return err
	}
	pair, err := half.Split(ctx, min(half.Rank(), 1), -half.Rank())
	if err != nil {
		return err
	}
	wantSize := 1 + min(half.Rank(), 1)
	if half.Size() != 3 || pair.Size() != wantSize {
		return fmt.Errorf("%v, %v: want 3 and %d ranks", half, pair, wantSize)
	}
	if pair.Size() == 2 {
		peer := 1 - pair.Rank()
		got := []int{0}
		s, err := mpi.Sendrecv(ctx, pair, []int{c.Rank()}, peer, 1, got, mpi.AnySource, 1)
		if err != nil {
			return err
		}
		if s.Source != peer || got[0] != pair.WorldRank(peer) {
			return fmt.Errorf("got %d from rank %d, want %d from %d", got[0], s.Source, pair.WorldRank(peer), peer)
		}
	}
	return shift(ctx, c, 2, c.Rank(), func(left int) int { return left })
}

// checkShadow: library traffic never matches the user's receives.
func checkShadow(ctx context.Context, c *mpi.Comm) error {
	s := c.Shadow()
	if s != c.Shadow() || s.Rank() != c.Rank() || s.Size() != c.Size() || s.Shadow() != s {
		return fmt.Errorf("shadow %v of %v", s, c)
	}
	right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	tag := mpi.ReservedTags
	rs := []mpi.Request{mpi.Isend(s, []int{1}, right, tag), mpi.Isend(c, []int{2}, right, tag)}
	got := []int{0}
	if _, err := mpi.Recv(ctx, c, got, mpi.AnySource, mpi.AnyTag); err != nil || got[0] != 2 {
		return fmt.Errorf("the user got %d, %w", got[0], err)
	}
	if _, err := mpi.Recv(ctx, s, got, left, tag); err != nil || got[0] != 1 {
		return fmt.Errorf("the library got %d, %w", got[0], err)
	}
	return mpi.WaitAll(ctx, rs)
}

func checkNode(ctx context.Context, c *mpi.Comm) error {
	node, err := c.Node(ctx)
	if err != nil {
		return err
	}
	var here []int
	for r := range c.Size() {
		if c.Host(r) == c.Host(c.Rank()) {
			here = append(here, r)
		}
	}
	if node.Size() != len(here) {
		return fmt.Errorf("%v, want %d ranks of %s", node, len(here), c.Host(c.Rank()))
	}
	return shift(ctx, node, 0, c.Rank(), func(left int) int { return here[left] })
}

// checkManyCommunicators makes and frees communicators: their number is not
// bounded by how many there were.
func checkManyCommunicators(ctx context.Context, c *mpi.Comm) error {
	var kept []*mpi.Comm
	for i := range 60 {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := shift(ctx, d, 0, i+c.Rank(), func(left int) int { return i + left }); err != nil {
			return err
		}
		if i%2 == 0 {
			d.Free()
		} else {
			kept = append(kept, d)
		}
	}
	for i, d := range kept {
		if err := shift(ctx, d, 0, i, func(int) int { return i }); err != nil {
			return err
		}
	}
	return nil
}

// together runs functions at the same time and joins their errors.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// checkGoroutines has many goroutines of each rank use one communicator.
func checkGoroutines(ctx context.Context, c *mpi.Comm) error {
	const goroutines, rounds = 24, 30
	right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	return together(goroutines, func(g int) error {
		for i := range rounds {
			n := []int{8, 600, 30_000}[(g+i)%3]
			buf := make([]byte, n)
			id := func(rank int) uint64 { return uint64(rank*1_000_000 + g*1000 + i) }
			s, err := mpi.Sendrecv(ctx, c, filled(id(c.Rank()), n), right, g, buf, left, g)
			if err := errors.Join(err, is(s, left, g, n), verify(buf, id(left))); err != nil {
				return fmt.Errorf("goroutine %d, round %d: %w", g, i, err)
			}
		}
		return nil
	})
}

// checkGoroutinesOfOneTag: receives of several goroutines share one stream of
// messages, and each message is received once.
func checkGoroutinesOfOneTag(ctx context.Context, c *mpi.Comm) error {
	const goroutines, each = 8, 100
	if c.Rank() == 0 {
		return together(goroutines, func(g int) error {
			for i := range each {
				if err := mpi.Send(ctx, c, []int{g*each + i}, 1, 3); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var mu sync.Mutex
	seen := make(map[int]int)
	err := together(goroutines, func(int) error {
		for range each {
			got := []int{-1}
			if _, err := mpi.Recv(ctx, c, got, mpi.AnySource, 3); err != nil {
				return err
			}
			mu.Lock()
			seen[got[0]]++
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return err
	}
	for v := range goroutines * each {
		if seen[v] != 1 {
			return fmt.Errorf("message %d was received %d times", v, seen[v])
		}
	}
	return nil
}

// checkCommunicatorsAtOnce makes communicators out of different ones at the
// same time.
func checkCommunicatorsAtOnce(ctx context.Context, c *mpi.Comm) error {
	const parents = 4
	var ps [parents]*mpi.Comm
	for i := range ps {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		ps[i] = d
	}
	return together(parents, func(g int) error {
		for i := range 10 {
			d, err := ps[g].Split(ctx, 0, c.Rank())
			if err != nil {
				return err
			}
			if err := shift(ctx, d, 0, 100*g+i, func(int) int { return 100*g + i }); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkDone: operations go on while nobody waits, and Done says when they have finished.
func checkDone(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	for i, n := range []int{8, 2 << 20} {
		buf := make([]byte, n)
		in, out := mpi.Irecv(c, buf, peer, i), mpi.Isend(c, filled(uint64(i), n), peer, i)
		for _, done := range []<-chan struct{}{in.Done(), out.Done()} {
			select {
			case <-done:
			case <-ctx.Done():
				return fmt.Errorf("%d B: Done was not closed: %w", n, context.Cause(ctx))
			}
		}
		if err := errors.Join(wait(ctx, in), wait(ctx, out), verify(buf, uint64(i))); err != nil {
			return err
		}
		<-in.Done() // spent: closed
	}
	return nil
}
