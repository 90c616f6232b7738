package native

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// fill makes a message that names its sender, tag and length.
func fill(n, rank, tag int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	binary.NativeEndian.PutUint64(seed[:], uint64(n))
	binary.NativeEndian.PutUint64(seed[8:], uint64(rank))
	binary.NativeEndian.PutUint64(seed[16:], uint64(tag))
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
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
		src, tag := AnySource, AnyTag
		if i%2 == 0 {
			src, tag = 0, i%3
		}
		if err := c.Probe(&r, src, tag); err != nil {
			return err
		}
		s, err := w.Wait(ctx, &r)
		if err != nil || (s != Status{Source: 0, Tag: i % 3, Bytes: i * 1000}) {
			return fmt.Errorf("probe %d: %+v %v", i, s, err)
		}
		buf := make([]byte, s.Bytes)
		if i%2 == 0 {
			s, err = c.Recv(ctx, buf, s.Source, s.Tag)
		} else if err = c.Irecv(&r, buf, s.Source, s.Tag); err == nil {
			s, err = w.Wait(ctx, &r)
		}
		if err != nil || s.Bytes != len(buf) || !bytes.Equal(buf, fill(len(buf), 0, i)) {
			return fmt.Errorf("message %d: %+v %v", i, s, err)
		}
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
	if took := time.Since(start); took > time.Minute {
		return fmt.Errorf("cancelling took %v", took)
	}
	var r Request
	for _, begin := range []func() error{
		func() error { return c.Irecv(&r, make([]byte, 8), AnySource, 1) },
		func() error { return c.Probe(&r, AnySource, 1) },
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
	if err := refusesToCancel(ctx, w); err != nil {
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

// refusesToCancel: a receive of which MPI_Cancel fails stays the library's, and completes. The call does not wait for that:
// its caller decides how long.
func refusesToCancel(ctx context.Context, w *World) error {
	c := w.comm
	word := make([]byte, 1)
	if c.rank == 0 {
		if _, err := c.Recv(ctx, word, 1, 7); err != nil { // rank 1 has given up
			return err
		}
		return c.Send(ctx, []byte{6}, 1, 6)
	}
	ended, end := context.WithCancel(ctx)
	end()
	cancel := w.fn.cancel
	w.fn.cancel = clib.Global("ffs") // of the request's address: from 1 to 32, as an error code
	returned, waited := make(chan struct{}), make(chan error, 1)
	go func() { waited <- sendIfWaiting(ctx, w, returned) }()
	_, err := c.Recv(ended, word, 0, 6)
	close(returned)
	w.fn.cancel = cancel
	if err := <-waited; err != nil {
		return err
	}
	var f *InFlightError
	if !errors.As(err, &f) || !errors.Is(err, context.Canceled) || !f.Request.InFlight() {
		return fmt.Errorf("receive that the library does not cancel: %w", err)
	}
	if err := c.Send(ctx, []byte{7}, 0, 7); err != nil {
		return err
	}
	if _, err := w.Wait(ctx, f.Request); err != nil || word[0] != 6 {
		return fmt.Errorf("receive that the library did not cancel: %v, %w", word, err)
	}
	return nil
}

// sendIfWaiting sends rank 0 what it answers, if somebody waits in the library before the call has returned.
func sendIfWaiting(ctx context.Context, w *World, returned <-chan struct{}) error {
	for {
		select {
		case <-returned:
			return nil
		default:
		}
		w.lock()
		waiting := w.leading
		w.mu.Unlock()
		if waiting {
			return w.comm.Send(ctx, []byte{7}, 0, 7)
		}
		pause(0)
	}
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
		if err := c.Iallreduce(&send, nil, make([]byte, 12), Float64, Sum); !errors.Is(err, ErrLength) {
			return fmt.Errorf("one float64 and a half: %v", err)
		}
		if err := c.IreduceScatterBlock(&send, nil, make([]byte, 40), Float64, Sum); !errors.Is(err, ErrLength) {
			return fmt.Errorf("five elements for two ranks: %v", err)
		}
		if err := c.IreduceScatterBlock(&send, nil, make([]byte, 17), Float64, Sum); !errors.Is(err, ErrLength) {
			return fmt.Errorf("a byte more than two blocks: %v", err)
		}
		if err := c.Ialltoallv(&send, make([]byte, 8), make([]byte, 8), []int{4, 4}, []int{4, 5}, Byte); !errors.Is(err, ErrLength) {
			return fmt.Errorf("nine elements into eight bytes: %v", err)
		}
		// Their sum, in bytes, is 0 where it overflows.
		if err := c.Ialltoallv(&send, nil, nil, []int{1, math.MaxInt}, []int{1, math.MaxInt}, Float32); !errors.Is(err, ErrUnsupported) {
			return fmt.Errorf("more elements than there are: %v", err)
		}
		if err := pingpongs(ctx, w, 5, make([]byte, 64)); err != nil {
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
