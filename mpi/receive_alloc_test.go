package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// TestRecvAllocTogether has goroutines receive messages of unlike lengths with one source and tag, of which the sender
// takes some back: each gets a whole message, and all those that were sent come once.
func TestRecvAllocTogether(t *testing.T) {
	const goroutines, messages, longest = 4, 400, 200_000
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	onEach(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		if c.Rank() == 0 {
			random := rand.New(rand.NewPCG(seed, 0))
			var sent []int
			for i := range messages {
				v := make([]int, 1+random.IntN(1+random.IntN(longest/8)))
				for j := range v {
					v[j] = i
				}
				r := mpi.Isend(c, v, 1, 7)
				if random.IntN(3) == 0 {
					r.Cancel()
				}
				switch _, err := r.Wait(ctx); {
				case err == nil:
					sent = append(sent, i, len(v))
				case !errors.Is(err, mpi.ErrCancelled):
					return err
				}
			}
			for range goroutines {
				if err := mpi.Send(ctx, c, []int{}, 1, 7); err != nil {
					return err
				}
			}
			return mpi.Send(ctx, c, sent, 1, 8)
		}
		var mu sync.Mutex
		got := map[int]int{}
		errs := make([]error, goroutines)
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for {
					v, s, err := mpi.RecvAlloc[int](ctx, c, 0, 7)
					if err != nil || len(v) == 0 {
						errs[g] = err
						return
					}
					if s.Bytes != 8*len(v) || v[0] != v[len(v)-1] {
						errs[g] = fmt.Errorf("%d elements, the first of message %d and the last of message %d, with status %+v", len(v), v[0], v[len(v)-1], s)
						return
					}
					mu.Lock()
					if got[v[0]] != 0 {
						errs[g] = fmt.Errorf("message %d came twice", v[0])
					}
					got[v[0]] = len(v)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		sent, _, err := mpi.RecvAlloc[int](ctx, c, 0, 8)
		if err != nil {
			return err
		}
		for ; len(sent) > 0; sent = sent[2:] {
			if got[sent[0]] != sent[1] {
				return fmt.Errorf("message %d has %d elements, want %d", sent[0], got[sent[0]], sent[1])
			}
			delete(got, sent[0])
		}
		if len(got) > 0 {
			return fmt.Errorf("messages that were taken back came: %v", got)
		}
		return nil
	})
}
