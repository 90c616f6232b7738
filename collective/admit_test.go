package collective

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Several goroutines of each rank are in collectives while the communicator gets its arena, often.
func TestArenaIsMadeBetweenCalls(t *testing.T) {
	communicators := 40
	if testing.Short() {
		communicators = 10
	}
	for _, size := range []int{2, 3} {
		spinning(size, func() {
			overSharedMemory(t, size, func(ctx context.Context, c *mpi.Comm) error {
				for i := range communicators {
					d, err := c.Dup(ctx)
					if err != nil {
						return err
					}
					if err := fourAtOnce(1)(ctx, d); err != nil {
						return fmt.Errorf("communicator %d: %w", i, err)
					}
					if stateOf(d).arena.Load() == nil {
						return errors.New("there is no arena")
					}
					d.Free()
				}
				return nil
			})
		})
	}
}

// A rank has so many arenas at a time: where it has, all ranks do without, and with one again when another has gone.
func TestArenasAreBounded(t *testing.T) {
	spinning(2, func() {
		overSharedMemory(t, 2, func(ctx context.Context, c *mpi.Comm) error {
			var first *mpi.Comm
			next := func() (bool, error) {
				d, err := c.Dup(ctx)
				if err != nil {
					return false, err
				}
				if first == nil {
					first = d
				}
				for range arenaAfter + 1 {
					if err := Barrier(ctx, d); err != nil {
						return false, err
					}
				}
				return stateOf(d).arena.Load() != nil, nil
			}
			for i := range maxArenas + 2 {
				if i == maxArenas+1 && c.Rank() == 0 { // of both, which the other does not know
					first.Free()
				}
				want := i < maxArenas
				if has, err := next(); err != nil || has != want {
					return fmt.Errorf("communicator %d: an arena: %v, want %v; %v", i, has, want, err)
				}
			}
			if c.Rank() == 1 {
				first.Free()
			}
			if has, err := next(); err != nil || !has {
				return fmt.Errorf("after one was freed: an arena: %v; %v", has, err)
			}
			return nil
		})
	})
}

// Nonblocking calls neither wait for the arena nor are they disturbed by it, and one that is started after a
// blocking call of another goroutine comes after it.
func TestNonblockingCallsPassTheArena(t *testing.T) {
	var started sync.WaitGroup
	started.Add(2)
	overSharedMemory(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		for range arenaAfter {
			if err := Barrier(ctx, c); err != nil {
				return err
			}
		}
		s := stateOf(c)
		first := make(chan error, 1)
		if c.Rank() == 0 {
			go func() { first <- Barrier(ctx, c) }()
			for !s.admits() {
				runtime.Gosched()
			}
		}
		// Rank 1 has not come to the barrier: this has to be done without the arena.
		one, sum := []int64{1}, make([]int64, 1)
		if c.Rank() == 1 {
			started.Done()
			started.Wait()
			first <- Barrier(ctx, c)
		}
		r := Iallreduce(c, one, sum, Sum)
		if c.Rank() == 0 {
			started.Done()
		}
		if err := errors.Join(r.Wait(ctx), <-first); err != nil {
			return err
		}
		if s.arena.Load() == nil {
			return errors.New("there is no arena")
		}
		return equal("iallreduce", sum, []int64{2})
	})
}

// A call of which the context ends while it waits for the arena ends then, and with it collectives on the communicator.
func TestWaitForTheArenaEndsWithTheContext(t *testing.T) {
	gone := make(chan struct{})
	overSharedMemory(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		for range arenaAfter {
			if err := Barrier(ctx, c); err != nil {
				return err
			}
		}
		if c.Rank() == 1 {
			<-gone
			return nil
		}
		defer close(gone)
		first := make(chan error)
		go func() { first <- Barrier(ctx, c) }()
		for !stateOf(c).admits() {
			runtime.Gosched()
		}
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		err := within(Barrier(short, c), context.DeadlineExceeded)
		return errors.Join(err, within(<-first, mpi.ErrCancelled), within(Barrier(ctx, c), ErrBroken))
	})
}

// admits: a call is making the arena.
func (s *state) admits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.making != nil
}

// spinning runs f with a processor for each of n ranks of this process: they wait for each other without giving way
// to goroutines.
func spinning(n int, f func()) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(n, runtime.GOMAXPROCS(0))))
	f()
}
