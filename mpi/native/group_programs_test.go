package native

// Programs of ranks that make communicators, leave them, or close beside them.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

func groups(ctx context.Context, w *World) error {
	c := w.comm
	d, err := c.Dup(ctx, "world.dup1")
	if err != nil {
		return err
	}
	if d.rank != c.rank || d.size != c.size {
		return fmt.Errorf("dup is rank %d of %d", d.rank, d.size)
	}
	// Messages of the two never match each other's receives.
	next, before := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
	b := make([]byte, 1)
	if err := d.Send(ctx, []byte{2}, next, 0); err != nil {
		return err
	}
	if err := c.Send(ctx, []byte{1}, next, 0); err != nil {
		return err
	}
	for want, comm := range []*Comm{c, d} {
		if _, err := comm.Recv(ctx, b, before, AnyTag); err != nil || int(b[0]) != want+1 {
			return fmt.Errorf("%s got %d: %v", comm.name, b[0], err)
		}
	}
	// All pairs and triples that contain this rank, made by as many goroutines at once,
	// started in an order of this rank's own.
	var sets [][]int
	for i := range c.size {
		for j := i + 1; j < c.size; j++ {
			sets = append(sets, []int{j, i})
			for k := j + 1; k < c.size; k++ {
				sets = append(sets, []int{k, i, j})
			}
		}
	}
	seed := uint64(time.Now().UnixNano())
	fmt.Println("rank", c.rank, "seed", seed)
	var wg sync.WaitGroup
	failed := make(chan error, len(sets))
	for _, i := range rand.New(rand.NewPCG(seed, uint64(c.rank))).Perm(len(sets)) {
		set := sets[i]
		if !slices.Contains(set, c.rank) {
			continue
		}
		wg.Go(func() {
			g, err := w.CreateGroup(ctx, fmt.Sprint(set), set, 1000+i)
			if err != nil {
				failed <- err
				return
			}
			if set[g.rank] != c.rank || g.size != len(set) {
				failed <- fmt.Errorf("%v: rank %d of %d", set, g.rank, g.size)
			}
			var r Request
			sum := []byte{byte(c.rank + 1)}
			if err := g.Iallreduce(&r, nil, sum, Uint8, Sum); err != nil {
				failed <- err
				return
			}
			want := 0
			for _, m := range set {
				want += m + 1
			}
			if _, err := w.Wait(ctx, &r); err != nil || int(sum[0]) != want {
				failed <- fmt.Errorf("sum over %v: %d, want %d: %v", set, sum[0], want, err)
			}
			if err := g.Free(); err != nil {
				failed <- err
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	return d.Free()
}

// leavers: the last rank asks for a group and gives up before the others come, or does not ask at all. They hear of it, and
// the world goes on.
func leavers(ctx context.Context, w *World) error {
	c := w.comm
	all := make([]int, c.size)
	for i := range all {
		all[i] = i
	}
	leaver, word := c.size-1, make([]byte, 1)
	wait := func(id int, patience time.Duration) error {
		short, stop := context.WithTimeout(ctx, patience)
		defer stop()
		_, err := w.CreateGroup(short, "given up", all, id)
		return err
	}
	if c.rank == leaver {
		if err := wait(2000, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("rank %d gives a group up: %w", leaver, err)
		}
		w.LeaveGroup(all, 2002)
		const more = 50
		for i := range more {
			if err := wait(2100+i, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("rank %d gives group %d up: %w", leaver, i, err)
			}
		}
		if n := inFlight(w); n > more/2 {
			return fmt.Errorf("%d requests are in flight after %d groups that have been given up", n, more)
		}
	} else {
		if _, err := c.Recv(ctx, word, leaver, 7); err != nil {
			return err
		}
		for _, id := range []int{2000, 2002} {
			var at *Error
			if err := wait(id, time.Minute); !errors.Is(err, ErrCancelled) || !errors.As(err, &at) || at.Peer != leaver {
				return fmt.Errorf("rank %d in group %d, which rank %d has left: %w", c.rank, id, leaver, err)
			}
		}
	}
	for _, r := range all {
		if c.rank == leaver && r != leaver {
			if err := c.Send(ctx, word, r, 7); err != nil {
				return err
			}
		}
	}
	g, err := w.CreateGroup(ctx, "whole", all, 2001)
	if err != nil {
		return err
	}
	var r Request
	if err := g.Ibarrier(&r); err != nil {
		return err
	}
	_, err = w.Wait(ctx, &r)
	return err
}

// inFlight is how many requests the library has.
func inFlight(w *World) (n int) {
	w.lock()
	defer w.mu.Unlock()
	for r := w.active; r != nil; r = r.next {
		n++
	}
	return n
}

// closingGroups: groups are made until Close ends that. None is left half made, by which Close would wait for ever, and
// none touches MPI after its end.
func closingGroups(ctx context.Context, w *World) error {
	c := w.comm
	sets := [][]int{{0, 1}, {1, 2}, {2, 0}, {0, 1, 2}}
	made, ended := make(chan struct{}, len(sets)), make(chan error, len(sets))
	for k, set := range sets {
		if !slices.Contains(set, c.rank) {
			made <- struct{}{}
			ended <- nil
			continue
		}
		go func() {
			for i := 0; ; i++ {
				g, err := w.CreateGroup(ctx, fmt.Sprint(set), set, k+i*len(sets))
				if err != nil {
					ended <- err
					return
				}
				if i == 0 {
					made <- struct{}{}
				}
				if err := g.Free(); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	for range sets {
		select {
		case <-made:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := w.Close(ctx); err != nil {
		return err
	}
	for range sets {
		if err := <-ended; err != nil && !errors.Is(err, ErrClosed) {
			return fmt.Errorf("a group when the world is closed: %w", err)
		}
	}
	return nil
}

// unfinished: like Close, others wait for the request of a blocking call. It is complete, and given back, before most of
// them look at it again.
func unfinished(ctx context.Context, w *World) error {
	const waiters = 16
	c, word := w.comm, make([]byte, 1)
	if c.rank == 0 {
		if _, err := c.Recv(ctx, word, 1, 1); err != nil {
			return err
		}
		return c.Send(ctx, word, 1, 2)
	}
	ended := make(chan error, 1+waiters)
	go func() { _, err := c.Recv(ctx, word, 0, 2); ended <- err }()
	r := until(w, func() *Request { return w.active })
	for range waiters {
		go func() { _, err := w.Wait(ctx, r); ended <- err }()
	}
	until(w, func() *Request {
		if len(w.parked) < waiters {
			return nil
		}
		return r
	})
	if err := c.Send(ctx, make([]byte, 1), 0, 1); err != nil {
		return err
	}
	for range 1 + waiters {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

// until asks again and again, under the world's lock, for a request.
func until(w *World, ask func() *Request) *Request {
	for {
		w.lock()
		r := ask()
		w.mu.Unlock()
		if r != nil {
			return r
		}
		pause(0)
	}
}
