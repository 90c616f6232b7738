package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fill makes a message that names its sender, tag and length.
func fill(n, rank, tag int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(uint64(n), uint64(rank)<<32|uint64(tag)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// pairs sends messages of all sizes between all pairs, at once and out of tag order.
func pairs(ctx context.Context, w *World) error {
	c := w.comm
	sizes := []int{0, 1, 8, 40, 1000, 4096, 8192, 65536, 262144, 1 << 20, 5<<20 + 3}
	for i, n := range sizes {
		var rs []*Request
		got := make([][]byte, c.size)
		for peer := range c.size {
			got[peer] = make([]byte, n+16)
			recv, send := new(Request), new(Request)
			if err := c.Irecv(recv, got[peer], peer, 100+i); err != nil {
				return err
			}
			if err := c.Isend(send, fill(n, c.rank, i), peer, 100+i); err != nil {
				return err
			}
			rs = append(rs, recv, send)
		}
		for k, r := range rs {
			s, err := w.Wait(ctx, r)
			if err != nil {
				return err
			}
			peer := k / 2
			if k%2 == 0 && (s != Status{Source: peer, Tag: 100 + i, Bytes: n} || !bytes.Equal(got[peer][:n], fill(n, peer, i))) {
				return fmt.Errorf("from %d, %d B: status %+v or wrong bytes", peer, n, s)
			}
		}
	}
	// Tags in the wrong order, wildcards, and messages of one pair in order.
	next, before := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
	var sends [6]Request
	for i := range 3 {
		if err := c.Isend(&sends[i], []byte{byte(i)}, next, i); err != nil {
			return err
		}
	}
	for i := range 3 {
		if err := c.Isend(&sends[3+i], []byte{byte(i)}, next, 9); err != nil {
			return err
		}
	}
	b := make([]byte, 1)
	for i := 2; i >= 0; i-- {
		if s, err := c.Recv(ctx, b, AnySource, i); err != nil || s.Source != before || b[0] != byte(i) {
			return fmt.Errorf("tag %d: %+v %v %v", i, s, b, err)
		}
	}
	for i := range 3 {
		if s, err := c.Recv(ctx, b, before, AnyTag); err != nil || s.Tag != 9 || b[0] != byte(i) {
			return fmt.Errorf("message %d with any tag: %+v %v %v", i, s, b, err)
		}
	}
	for i := range sends {
		if _, err := w.Wait(ctx, &sends[i]); err != nil {
			return err
		}
	}
	// Nobody is a legal partner; the largest tag works.
	if err := c.Send(ctx, b, ProcNull, 0); err != nil {
		return err
	}
	if s, err := c.Recv(ctx, b, ProcNull, 0); err != nil || s.Source != ProcNull || s.Bytes != 0 {
		return fmt.Errorf("receive from nobody: %+v %v", s, err)
	}
	var r Request
	if err := c.Irecv(&r, b, before, w.caps.MaxTag); err != nil {
		return err
	}
	if err := c.Send(ctx, []byte{42}, next, w.caps.MaxTag); err != nil {
		return err
	}
	if s, err := w.Wait(ctx, &r); err != nil || b[0] != 42 || s.Tag != w.caps.MaxTag {
		return fmt.Errorf("largest tag: %+v %v", s, err)
	}
	if err := c.Irecv(&r, b, before, 5); err != nil {
		return err
	}
	if err := c.Irecv(&r, b, before, 5); !errors.Is(err, ErrBusy) {
		return fmt.Errorf("starting a request in flight: %v, want ErrBusy", err)
	}
	if err := c.Send(ctx, b, next, 5); err != nil {
		return err
	}
	_, err := w.Wait(ctx, &r)
	return err
}

// probes: rank 1 learns the length of messages before it receives them.
func probes(ctx context.Context, w *World) error {
	c := w.comm
	const messages = 50
	if c.rank == 0 {
		for i := range messages {
			if err := c.Send(ctx, fill(i*1000, 0, i), 1, i%3); err != nil {
				return err
			}
		}
		_, err := c.Recv(ctx, make([]byte, 1), 1, 7)
		return err
	}
	var r Request
	for i := range messages {
		start, src, tag := c.Mprobe, AnySource, AnyTag
		if i%2 == 0 {
			start, src, tag = c.Probe, 0, i%3
		}
		if err := start(&r, src, tag); err != nil {
			return err
		}
		s, err := w.Wait(ctx, &r)
		if err != nil || (s != Status{Source: 0, Tag: i % 3, Bytes: i * 1000}) {
			return fmt.Errorf("probe %d: %+v %v", i, s, err)
		}
		buf := make([]byte, s.Bytes)
		if i%2 == 0 {
			s, err = c.Recv(ctx, buf, s.Source, s.Tag)
		} else if err = c.Imrecv(&r, buf); err == nil {
			s, err = w.Wait(ctx, &r)
		}
		if err != nil || s.Bytes != len(buf) || !bytes.Equal(buf, fill(len(buf), 0, i)) {
			return fmt.Errorf("message %d: %+v %v", i, s, err)
		}
	}
	if err := c.Imrecv(&r, nil); err == nil {
		return errors.New("Imrecv without a matched message succeeded")
	}
	return c.Send(ctx, []byte{1}, 0, 7)
}

func cancels(ctx context.Context, w *World) error {
	c := w.comm
	peer := 1 - c.rank
	// Never matched: comes back cancelled, and the buffer is free.
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	start := time.Now()
	if _, err := c.Recv(short, make([]byte, 8), peer, 1); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("receive that never matches: %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		return fmt.Errorf("cancelling took %v", took)
	}
	var r Request
	for _, begin := range []func() error{
		func() error { return c.Irecv(&r, make([]byte, 8), AnySource, 1) },
		func() error { return c.Probe(&r, AnySource, 1) },
		func() error { return c.Mprobe(&r, AnySource, 1) },
	} {
		if err := begin(); err != nil {
			return err
		}
		if err := r.Cancel(); err != nil {
			return err
		}
		if _, err := w.Wait(ctx, &r); !errors.Is(err, ErrCancelled) || r.InFlight() {
			return fmt.Errorf("cancelled %v: %v", r.op, err)
		}
	}
	// A goroutine that is parked behind the polling one sees its probe cancelled.
	var outer, inner Request
	if err := c.Irecv(&outer, make([]byte, 1), peer, 2); err != nil {
		return err
	}
	if err := c.Probe(&inner, peer, 3); err != nil {
		return err
	}
	received, probed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := w.Wait(ctx, &outer); received <- err }()
	go func() { _, err := w.Wait(ctx, &inner); probed <- err }()
	if err := inner.Cancel(); err != nil {
		return err
	}
	if err := <-probed; !errors.Is(err, ErrCancelled) {
		return fmt.Errorf("probe cancelled while waited for: %v", err)
	}
	if err := c.Send(ctx, []byte{1}, peer, 2); err != nil {
		return err
	}
	if err := <-received; err != nil {
		return err
	}
	// A send cannot be taken back: it is said so, and the buffer stays the library's.
	big := fill(8<<20, 0, 0)
	if c.rank == 0 {
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		defer stop()
		err := c.Send(short, big, 1, 4)
		var f *InFlightError
		if !errors.As(err, &f) || !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("send that nobody receives: %v", err)
		}
		if err := f.Request.Cancel(); !errors.Is(err, ErrUnsupported) {
			return fmt.Errorf("cancelling a send: %v, want ErrUnsupported", err)
		}
		if err := c.Send(ctx, []byte{1}, 1, 5); err != nil {
			return err
		}
		_, err = w.Wait(ctx, f.Request)
		return err
	}
	if _, err := c.Recv(ctx, make([]byte, 1), 0, 5); err != nil {
		return err
	}
	got := make([]byte, len(big))
	if _, err := c.Recv(ctx, got, 0, 4); err != nil || !bytes.Equal(got, big) {
		return fmt.Errorf("the message whose sender stopped waiting: %v", err)
	}
	return nil
}

func wrongUse(ctx context.Context, w *World) error {
	c := w.comm
	peer := 1 - c.rank
	for range 3 { // the library must be usable after each
		var send Request
		if err := c.Isend(&send, make([]byte, 100), peer, 3); err != nil {
			return err
		}
		_, err := c.Recv(ctx, make([]byte, 10), peer, 3)
		var e *Error
		if !errors.Is(err, ErrTruncated) || !errors.As(err, &e) || e.Peer != peer || e.Tag != 3 || e.Rank != c.rank || e.Detail == "" {
			return fmt.Errorf("100 B into 10 B: %#v", err)
		}
		if _, err := w.Wait(ctx, &send); err != nil {
			return err
		}
		if err := c.Send(ctx, nil, 2, 0); !errors.Is(err, ErrRank) {
			return fmt.Errorf("sending to rank 2 of 2: %v", err)
		}
		if err := c.Send(ctx, nil, AnySource, 0); !errors.Is(err, ErrRank) {
			return fmt.Errorf("sending to AnySource: %v", err)
		}
		if err := c.Send(ctx, nil, peer, -5); !errors.Is(err, ErrTag) {
			return fmt.Errorf("sending with tag -5: %v", err)
		}
		if err := c.Ibcast(&send, make([]byte, 8), Float64, 7); !errors.Is(err, ErrRank) {
			return fmt.Errorf("root 7: %v", err)
		}
		if err := c.Iallreduce(&send, nil, make([]byte, 8), Complex64, Max); !errors.Is(err, ErrUnsupported) {
			return fmt.Errorf("maximum of complex: %v", err)
		}
		if err := c.Iallgather(&send, make([]byte, 8), make([]byte, 24), Float64); !errors.Is(err, ErrLength) {
			return fmt.Errorf("three blocks for two ranks: %v", err)
		}
		if err := c.Ialltoallv(&send, make([]byte, 8), make([]byte, 8), []int{4, 4}, []int{4, 5}, Byte); !errors.Is(err, ErrLength) {
			return fmt.Errorf("nine elements into eight bytes: %v", err)
		}
		if err := pingpongs(ctx, w, 5, 64); err != nil {
			return err
		}
	}
	// An error of the library itself: a communicator that has been freed here.
	d, err := c.Dup(ctx, "dup")
	if err != nil {
		return err
	}
	if err := d.Free(); err != nil {
		return err
	}
	return d.Free() // twice is once
}

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

func pingpongs(ctx context.Context, w *World, n, size int) error {
	c := w.comm
	buf := make([]byte, size)
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
		if err := pingpongs(ctx, w, 1000, 8); err != nil {
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
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := round(); err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > 200 {
		return fmt.Errorf("%d allocations in 2000 messages and 2000 collectives", n)
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
			w.fn.isendC, w.fn.irecvC, w.fn.imrecvC = 0, 0, 0
		}
		if err := pairs(ctx, w); err != nil {
			return fmt.Errorf("with large-count calls %v: %w", withC, err)
		}
		if err := probes(ctx, w); err != nil {
			return fmt.Errorf("with large-count calls %v: %w", withC, err)
		}
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

// idleRank: a rank that waits for long must leave the core to others.
func idleRank(ctx context.Context, w *World) error {
	c := w.comm
	if c.rank == 0 {
		nap(1500 * time.Millisecond)
		return c.Send(ctx, []byte{1}, 1, 1)
	}
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		return err
	}
	start := time.Now()
	if _, err := c.Recv(ctx, make([]byte, 1), 0, 1); err != nil {
		return err
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		return err
	}
	used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	share := float64(used) / float64(time.Since(start))
	fmt.Printf("waiting %v took %.1f %% of a core\n", time.Since(start).Round(time.Millisecond), 100*share)
	if share > 0.4 {
		return fmt.Errorf("a waiting rank used %.0f %% of a core", 100*share)
	}
	return nil
}

// late leaves a receive in flight that nothing will match.
func late(_ context.Context, w *World) error {
	return w.comm.Irecv(new(Request), make([]byte, 8), AnySource, 77)
}
