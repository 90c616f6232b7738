package mpitest

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// call is something that two ranks do together, again and again.
type call struct {
	name string
	do   func() error
}

// messageCalls are the ways to send n bytes to the other of two ranks and to receive as many from it. Calls with
// different tags may be under way at a time.
func messageCalls(ctx context.Context, c *mpi.Comm, n, tag int) []call {
	peer := 1 - c.Rank()
	send, recv, both := make([]byte, n), make([]byte, n), make([]mpi.Request, 2)
	post := func() {
		both[0] = mpi.Irecv(c, recv, peer, tag)
		both[1] = mpi.Isend(c, send, peer, tag)
	}
	again := []*mpi.Persistent{mpi.RecvInit(c, recv, peer, tag), mpi.SendInit(c, send, peer, tag)}
	return []call{
		{"Send and Recv", func() error {
			if c.Rank() == 0 {
				if err := mpi.Send(ctx, c, send, peer, tag); err != nil {
					return err
				}
			}
			_, err := mpi.Recv(ctx, c, recv, peer, tag)
			if err == nil && c.Rank() == 1 {
				err = mpi.Send(ctx, c, send, peer, tag)
			}
			return err
		}},
		{"Sendrecv", func() error {
			_, err := mpi.Sendrecv(ctx, c, send, peer, tag, recv, peer, tag)
			return err
		}},
		{"Isend, Irecv and WaitAll", func() error { post(); return mpi.WaitAll(ctx, both) }},
		{"Isend, Irecv and Test", func() error {
			post()
			for left := 2; left > 0; {
				for i, r := range both {
					if _, done, err := r.Test(); err != nil {
						return err
					} else if done && !r.Null() {
						both[i] = mpi.Request{}
						left--
					}
				}
			}
			return nil
		}},
		{"Isend, Irecv and WaitAny", func() error {
			post()
			for range both {
				if _, _, err := mpi.WaitAny(ctx, both); err != nil {
					return err
				}
			}
			return nil
		}},
		{"Persistent", func() error {
			for _, p := range again {
				if err := p.Start(); err != nil {
					return err
				}
			}
			for _, p := range again {
				if _, err := p.Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		}},
	}
}

// allocatesNothing counts the allocations of the whole process while a goroutine for each call makes it
// again and again. What is kept for use again is made at first, and a ring or a queue may grow at any time: of
// several stretches the one with the fewest counts.
func allocatesNothing(c *mpi.Comm, n int, calls ...call) error {
	const stretches, rounds = 4, 40
	least := uint64(math.MaxUint64)
	for range stretches {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := together(len(calls), func(g int) error {
			for range rounds {
				if err := calls[g].do(); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return fmt.Errorf("%s of %d B: %w", calls[0].name, n, err)
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	// The goroutines themselves are a few, and the runtime allocates now and then: a new thread, a timer.
	all := uint64(rounds * len(calls))
	if least > all/4 {
		return fmt.Errorf("%s of %d B: %d allocations in %d rounds", calls[0].name, n, least, all)
	}
	if c.Rank() == 0 {
		fmt.Printf("%s of %d B: %d allocations in %d rounds\n", calls[0].name, n, least, all)
	}
	return nil
}

// Nothing is allocated on the fast path, by one goroutine or by several at a time.
func TestMessagesAllocateNothing(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, goroutines := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", transport, goroutines), func(t *testing.T) {
				Processes(t, 2, transport, "TestAllocatingRank", strconv.Itoa(goroutines))
			})
		}
	}
}

// TestAllocatingRank is a rank of TestMessagesAllocateNothing.
func TestAllocatingRank(t *testing.T) {
	BeProcess(t, func(ctx context.Context, c *mpi.Comm, role string) error {
		goroutines, err := strconv.Atoi(role)
		if err != nil {
			return err
		}
		for _, n := range []int{8, 64 << 10} {
			var each [][]call
			for g := range goroutines {
				each = append(each, messageCalls(ctx, c, n, g+1))
			}
			for i := range each[0] {
				var calls []call
				for _, k := range each {
					calls = append(calls, k[i])
				}
				if err := allocatesNothing(c, n, calls...); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
