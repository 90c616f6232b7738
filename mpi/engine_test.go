package mpi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// ranks runs f on n ranks over the simulated fabric, with and without pulled memory.
func ranks(t *testing.T, n int, f func(ctx context.Context, c *Comm) error) {
	for _, pull := range []bool{false, true} {
		t.Run(fmt.Sprintf("pull=%v", pull), func(t *testing.T) {
			runLocal(t, n, LocalOptions{Pull: pull}, f)
		})
	}
}

func runLocal(t *testing.T, n int, o LocalOptions, f func(ctx context.Context, c *Comm) error) {
	t.Helper()
	if o.Fabric == nil {
		o.Fabric = sim.New(sim.Config{Ranks: n, MaxDelay: 100 * time.Microsecond})
		t.Logf("seed %d", o.Fabric.Seed())
	}
	worlds, err := Local(n, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for r, w := range worlds {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(ctx, w.Comm()); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := w.Close(ctx); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}()
	}
	wg.Wait()
}

func TestSendRecvSizes(t *testing.T) {
	ranks(t, 2, func(ctx context.Context, c *Comm) error {
		for i, n := range []int{0, 1, 7, 1000, 2048, 10000, 300000} {
			buf := make([]int32, n)
			if c.Rank() == 0 {
				for j := range buf {
					buf[j] = int32(j * (i + 1))
				}
				if err := Send(ctx, c, buf, 1, i); err != nil {
					return err
				}
				continue
			}
			s, err := Recv(ctx, c, buf, 0, i)
			if err != nil {
				return err
			}
			if Count[int32](s) != n || s.Source != 0 || s.Tag != i {
				return fmt.Errorf("status %+v for %d elements", s, n)
			}
			for j := range buf {
				if buf[j] != int32(j*(i+1)) {
					return fmt.Errorf("element %d of %d is %d", j, n, buf[j])
				}
			}
		}
		return nil
	})
}

func TestTruncatedIsAnError(t *testing.T) {
	ranks(t, 2, func(ctx context.Context, c *Comm) error {
		for _, n := range []int{100, 100000} {
			if c.Rank() == 0 {
				if err := Send(ctx, c, make([]byte, n), 1, 5); err != nil {
					return err
				}
				continue
			}
			s, err := Recv(ctx, c, make([]byte, 10), 0, 5)
			var at *Error
			if !errors.Is(err, ErrTruncated) || !errors.As(err, &at) || s.Bytes != n {
				return fmt.Errorf("%d B: status %+v, error %v", n, s, err)
			}
		}
		return nil
	})
}

func TestDupAndSplitIsolate(t *testing.T) {
	ranks(t, 5, func(ctx context.Context, c *Comm) error {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		s, err := c.Split(ctx, c.Rank()%2, -c.Rank())
		if err != nil {
			return err
		}
		wantSize := 3 - c.Rank()%2
		if s.Size() != wantSize || s.WorldRank(s.Rank()) != c.Rank() || s.WorldRank(0) != 4-c.Rank()%2 {
			return fmt.Errorf("split is %v, first member %d", s, s.WorldRank(0))
		}
		// The same tag to the same rank on three communicators.
		next, prev := (c.Rank()+1)%5, (c.Rank()+4)%5
		a := Isend(c, []int{1}, next, 0)
		b := Isend(d, []int{2}, next, 0)
		x, y := []int{0}, []int{0}
		if _, err := Recv(ctx, d, y, prev, AnyTag); err != nil {
			return err
		}
		if _, err := Recv(ctx, c, x, AnySource, 0); err != nil {
			return err
		}
		if x[0] != 1 || y[0] != 2 {
			return fmt.Errorf("got %d and %d", x[0], y[0])
		}
		return WaitAll(ctx, []Request{a, b})
	})
}

func TestLossNamesRankAndSparesTheOthers(t *testing.T) {
	f := sim.New(sim.Config{Ranks: 3, Seed: 7})
	dead := make(chan struct{})
	runLocal(t, 3, LocalOptions{Fabric: f, Host: func(r int) string { return fmt.Sprintf("n%d", r) }}, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 2 {
			f.Kill(2)
			close(dead)
			return nil
		}
		_, err := Recv(ctx, c, make([]int, 1), 2, 0)
		var at *Error
		if !errors.Is(err, ErrPeerLost) || !errors.As(err, &at) || at.Peer != 2 || at.Host != "n2" {
			return fmt.Errorf("receive from the dead rank: %v", err)
		}
		if _, err = Recv(ctx, c, make([]int, 1), AnySource, 0); !errors.Is(err, ErrPeerLost) {
			return fmt.Errorf("receive from any rank: %v", err)
		}
		<-dead
		c.AckLost()
		other := 1 - c.Rank()
		got := []int{0}
		if _, err := Sendrecv(ctx, c, []int{c.Rank()}, other, 3, got, AnySource, 3); err != nil || got[0] != other {
			return fmt.Errorf("the living: got %d, %v", got[0], err)
		}
		c.Revoke()
		if err := Send(ctx, c, got, other, 4); !errors.Is(err, ErrRevoked) {
			return fmt.Errorf("send after revoke: %v", err)
		}
		s, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		if s.Size() != 2 || s.Rank() != c.Rank() {
			return fmt.Errorf("shrunk to %v", s)
		}
		_, err = Sendrecv(ctx, s, []int{c.Rank()}, other, 3, got, other, 3)
		return err
	})
}

func TestCancelledSendGivesItsBufferBack(t *testing.T) {
	ranks(t, 2, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 0 {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			err := Send(short, c, make([]byte, 1<<20), 1, 1)
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrInFlight) {
				return fmt.Errorf("send nobody receives: %v", err)
			}
			return Send(ctx, c, []byte{9}, 1, 2)
		}
		got := []byte{0}
		_, err := Recv(ctx, c, got, 0, 2)
		if err != nil || got[0] != 9 {
			return fmt.Errorf("got %d, %v", got[0], err)
		}
		return nil
	})
}

// TestSelfBoundsMemory: what a rank sends to itself and does not receive costs no more than what a peer sends. What is
// beyond stays where it is, in its order.
func TestSelfBoundsMemory(t *testing.T) {
	runLocal(t, 1, LocalOptions{}, func(ctx context.Context, c *Comm) error {
		const n, size = 200, 60 << 10
		e := c.dev.(*engine)
		held := func() (bytes int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for a := e.match.first; a != nil; a = a.seqNext {
				bytes += len(a.payload)
			}
			return bytes
		}
		for range 2 { // the second time there is as much room as the first
			rs, copied := make([]Request, n), 0
			for i := range rs {
				buf := make([]byte, size)
				buf[0] = byte(i)
				rs[i] = Isend(c, buf, 0, 1)
				if _, done, err := rs[i].Test(); err != nil {
					return err
				} else if done {
					copied++
					buf[0], rs[i] = 255, Request{}
				}
			}
			if want := selfCreditBytes / (size + transport.EnvelopeBytes); copied != want || held() != want*size {
				return fmt.Errorf("%d messages are copied, %d bytes in all, want %d messages", copied, held(), want)
			}
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			err := Send(short, c, make([]byte, size), 0, 1)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrInFlight) {
				return fmt.Errorf("a send beyond the bound ends with %w", err)
			}
			got := make([]byte, size)
			for i := range n {
				if _, err := Recv(ctx, c, got, 0, 1); err != nil || got[0] != byte(i) {
					return fmt.Errorf("message %d of %d: %w", got[0], i, err)
				}
			}
			if err := WaitAll(ctx, rs); err != nil {
				return err
			}
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.selfHeld != 0 {
			return fmt.Errorf("%d bytes are counted as held", e.selfHeld)
		}
		return nil
	})
}

func TestManyOutstanding(t *testing.T) {
	ranks(t, 2, func(ctx context.Context, c *Comm) error {
		const n = 5000
		rs := make([]Request, n)
		vals := make([]int64, n)
		for i := range n {
			if c.Rank() == 0 {
				vals[i] = int64(i)
				rs[i] = Isend(c, vals[i:i+1], 1, i)
			} else {
				rs[i] = Irecv(c, vals[n-1-i:n-i], 0, n-1-i)
			}
		}
		if err := WaitAll(ctx, rs); err != nil {
			return err
		}
		for i, v := range vals {
			if v != int64(i) {
				return fmt.Errorf("element %d is %d", i, v)
			}
		}
		return nil
	})
}

func TestSlowReceiverBoundsMemory(t *testing.T) {
	ranks(t, 2, func(ctx context.Context, c *Comm) error {
		const n, size = 3000, 4096
		buf := make([]byte, size)
		if c.Rank() == 0 {
			rs := make([]Request, n)
			for i := range rs {
				rs[i] = Isend(c, buf, 1, 1)
			}
			return WaitAll(ctx, rs)
		}
		if _, err := c.Probe(ctx, 0, 1); err != nil {
			return err
		}
		e := c.dev.(*engine)
		for i := range n {
			if _, err := Recv(ctx, c, buf, 0, 1); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
			e.mu.Lock()
			held := 0
			for a := e.match.first; a != nil; a = a.seqNext {
				held += len(a.payload)
			}
			credit := e.providers[0].Caps().CreditBytes
			e.mu.Unlock()
			if held > credit {
				return fmt.Errorf("%d B of unexpected messages held, credit is %d B", held, credit)
			}
		}
		return nil
	})
}
