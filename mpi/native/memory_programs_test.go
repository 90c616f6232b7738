package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func pingpongs(ctx context.Context, w *World, n int, buf []byte) error {
	c := w.comm
	for range n {
		if c.rank == 0 {
			if err := c.Send(ctx, buf, 1, 1); err != nil {
				return err
			}
		}
		if c.rank < 2 {
			if _, err := c.Recv(ctx, buf, 1-c.rank, 1); err != nil {
				return err
			}
		}
		if c.rank == 1 {
			if err := c.Send(ctx, buf, 0, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

func mallocs(ctx context.Context, w *World) error {
	c := w.comm
	x := make([]byte, 64)
	var r Request
	round := func() error {
		if err := pingpongs(ctx, w, 1000, x[:8]); err != nil {
			return err
		}
		for range 1000 {
			if err := c.Iallreduce(&r, nil, x, Float64, Sum); err != nil {
				return err
			}
			if _, err := w.Wait(ctx, &r); err != nil {
				return err
			}
			if err := c.Ibarrier(&r); err != nil {
				return err
			}
			if _, err := w.Wait(ctx, &r); err != nil {
				return err
			}
		}
		return nil
	}
	if err := round(); err != nil { // fills the pools
		return err
	}
	fewest := uint64(math.MaxUint64) // of a few rounds: what else the runtime does falls into one of them
	for range 4 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := round(); err != nil {
			return err
		}
		runtime.ReadMemStats(&after)
		fewest = min(fewest, after.Mallocs-before.Mallocs)
	}
	if fewest > 100 {
		return fmt.Errorf("%d allocations in 2000 messages and 2000 collectives", fewest)
	}
	return nil
}

// stacks receives into arrays that look as if they could stay on the stack, and grows
// the stack before the message comes.
func stacks(ctx context.Context, w *World) error {
	c := w.comm
	b := []byte{0}
	for i := range 100 {
		if c.rank == 1 {
			if _, err := c.Recv(ctx, b, 0, 2); err != nil {
				return err
			}
			if err := c.Send(ctx, []byte{1, 2, 3, byte(i), 5, 6, 7, 8}, 0, 3); err != nil {
				return err
			}
			continue
		}
		fail := make(chan error)
		go func() {
			var r Request
			var local [8]byte
			err := c.Irecv(&r, local[:], 1, 3)
			if err == nil {
				grow(64)
				err = c.Send(ctx, b, 1, 2)
			}
			if err == nil {
				_, err = w.Wait(ctx, &r)
			}
			if err == nil && local != [8]byte{1, 2, 3, byte(i), 5, 6, 7, 8} {
				err = fmt.Errorf("message %d was lost: %v", i, local)
			}
			fail <- err
		}()
		if err := <-fail; err != nil {
			return err
		}
	}
	return nil
}

func grow(n int) byte {
	var pad [1024]byte
	pad[n] = byte(n)
	if n == 0 {
		return pad[0]
	}
	return grow(n-1) + pad[n]
}

// collector keeps transfers in flight whose requests and buffers only the library
// holds, while the collector runs all the time.
func collector(ctx context.Context, w *World) error {
	c := w.comm
	peer := 1 - c.rank
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	for g := range 4 {
		wg.Go(func() {
			for i := range 60 {
				n := 1 << (i % 18)
				got := make([]byte, n)
				recv := new(Request)
				if err := c.Irecv(recv, got, peer, g); err != nil {
					failed <- err
					return
				}
				if err := c.Isend(new(Request), fill(n, c.rank, i), peer, g); err != nil { // dropped: nobody waits
					failed <- err
					return
				}
				if _, err := w.Wait(ctx, recv); err != nil || !bytes.Equal(got, fill(n, peer, i)) {
					failed <- fmt.Errorf("message %d of %d B is corrupt or failed: %v", i, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func goroutines(ctx context.Context, w *World) error {
	c := w.comm
	peer := 1 - c.rank
	for _, n := range []int{2, 8, 64} {
		start := time.Now()
		var wg sync.WaitGroup
		failed := make(chan error, n)
		const rounds = 50
		for g := range n {
			wg.Go(func() {
				b := make([]byte, 8)
				for i := range rounds {
					b[0] = byte(i)
					var err error
					if c.rank == 0 {
						err = c.Send(ctx, b, peer, g)
					}
					if err == nil {
						_, err = c.Recv(ctx, b, peer, g)
					}
					if err == nil && c.rank == 1 {
						err = c.Send(ctx, b, peer, g)
					}
					if err != nil || b[0] != byte(i) {
						failed <- fmt.Errorf("goroutine %d round %d got %d: %v", g, i, b[0], err)
						return
					}
				}
			})
		}
		wg.Wait()
		select {
		case err := <-failed:
			return err
		default:
		}
		if c.rank == 0 {
			threads, _ := os.ReadDir("/proc/self/task")
			fmt.Printf("%d goroutines: %.1f µs a round trip, %d threads\n", n,
				float64(time.Since(start).Microseconds())/float64(n*rounds), len(threads))
		}
	}
	return nil
}

// large sends messages that take the large-count form, or a datatype of their own, by
// calling counts above 999 large.
func large(ctx context.Context, w *World) error {
	for _, withC := range []bool{true, false} {
		if withC && w.fn.isendC == 0 {
			continue
		}
		w.maxCount = 999
		if !withC {
			w.fn.isendC, w.fn.irecvC = 0, 0
		}
		if err := pairs(ctx, w); err != nil {
			return fmt.Errorf("with large-count calls %v: %w", withC, err)
		}
		if err := probes(ctx, w); err != nil {
			return fmt.Errorf("with large-count calls %v: %w", withC, err)
		}
	}
	if err := freesTypes(ctx, w); err != nil {
		return err
	}
	var r Request
	if err := w.comm.Ibcast(&r, make([]byte, 1000), Byte, 0); !errors.Is(err, ErrUnsupported) {
		return fmt.Errorf("a collective of too many elements: %v, want ErrUnsupported", err)
	}
	w.maxCount = maxCount
	if n, err := strconv.Atoi(os.Getenv("FISTERRA_NATIVE_TEST_BYTES")); err == nil {
		return huge(ctx, w, n)
	}
	return nil
}

// freesTypes: the datatypes that are made for large messages do not pile up.
func freesTypes(ctx context.Context, w *World) error {
	const messages, most = 5000, 4 << 20 // a datatype takes some 1.6 KiB
	peer, out, buf := 1-w.comm.rank, make([]byte, 5000), make([]byte, 5000)
	var r Request
	exchange := func() error {
		for range messages {
			if err := w.comm.Irecv(&r, buf, peer, 1); err != nil {
				return err
			}
			if err := w.comm.Send(ctx, out, peer, 1); err != nil {
				return err
			}
			if _, err := w.Wait(ctx, &r); err != nil {
				return err
			}
		}
		return nil
	}
	if err := exchange(); err != nil {
		return err
	}
	before, err := residentBytes()
	if err != nil {
		return err
	}
	if err := exchange(); err != nil {
		return err
	}
	after, err := residentBytes()
	if err == nil && after-before > most {
		err = fmt.Errorf("%d large messages took %d B for good", messages, after-before)
	}
	return err
}

// residentBytes is how much memory of the process's own is in use, without garbage.
func residentBytes() (int, error) {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident, shared int
	_, err = fmt.Sscan(string(text), &size, &resident, &shared)
	return (resident - shared) * os.Getpagesize(), err
}

// huge moves one message of n bytes.
func huge(ctx context.Context, w *World, n int) error {
	buf := make([]byte, n)
	if w.comm.rank == 0 {
		buf[0], buf[n/2], buf[n-1] = 1, 2, 3
		return w.comm.Send(ctx, buf, 1, 1)
	}
	s, err := w.comm.Recv(ctx, buf, 0, 1)
	if err == nil && (s.Bytes != n || buf[0] != 1 || buf[n/2] != 2 || buf[n-1] != 3) {
		err = fmt.Errorf("%d B arrived as %+v, %d %d %d", n, s, buf[0], buf[n/2], buf[n-1])
	}
	return err
}

// idleRank: a rank that waits for long must leave the core to others. Of several stretches the least busy one counts: in the
// others the core may have been taken away and charged to the rank.
func idleRank(ctx context.Context, w *World) error {
	const stretches, mostShare = 5, 0.4
	c := w.comm
	least := math.Inf(1)
	for range stretches {
		slept := make([]byte, 1)
		if c.rank == 0 {
			nap(1500 * time.Millisecond)
			if err := c.Send(ctx, []byte{1}, 1, 1); err != nil {
				return err
			}
			if _, err := c.Recv(ctx, slept, 1, 2); err != nil {
				return err
			}
		} else {
			share, err := idleShare(ctx, c)
			if err != nil {
				return err
			}
			if least = min(least, share); least <= mostShare {
				slept[0] = 1
			}
			if err := c.Send(ctx, slept, 0, 2); err != nil {
				return err
			}
		}
		if slept[0] == 1 {
			return nil
		}
	}
	if c.rank == 0 {
		return nil // the other tells
	}
	return fmt.Errorf("a waiting rank used %.0f %% of a core", 100*least)
}

// idleShare is the share of a core that this rank uses while it waits for rank 0.
func idleShare(ctx context.Context, c *Comm) (float64, error) {
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := c.Recv(ctx, make([]byte, 1), 0, 1); err != nil {
		return 0, err
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		return 0, err
	}
	used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	share := float64(used) / float64(time.Since(start))
	fmt.Printf("waiting %v took %.1f %% of a core\n", time.Since(start).Round(time.Millisecond), 100*share)
	return share, nil
}

// late leaves a receive in flight that nothing will match.
func late(_ context.Context, w *World) error {
	return w.comm.Irecv(new(Request), make([]byte, 8), AnySource, 77)
}
