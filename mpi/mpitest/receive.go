package mpitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// checkCancelReceive: a cancelled receive gives its buffer back and takes no
// message; one that has its message is not cancelled.
func checkCancelReceive(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	for _, n := range []int{8, 100_000} {
		if c.Rank() == 0 {
			if err := sync2(ctx, c, peer, 1); err != nil {
				return err
			}
			if err := mpi.Send(ctx, c, filled(1, n), peer, 5); err != nil {
				return err
			}
			if err := mpi.Send(ctx, c, filled(2, n), peer, 6); err != nil {
				return err
			}
			continue
		}
		first, second := make([]byte, n), make([]byte, n)
		r := mpi.Irecv(c, first, peer, 5)
		s := mpi.Irecv(c, second, peer, 5)
		any := mpi.Irecv(c, make([]byte, n), mpi.AnySource, 77)
		any.Cancel()
		r.Cancel()
		r.Cancel() // once more is nothing
		if err := wants("cancelled receive", wait(ctx, r), mpi.ErrCancelled); err != nil {
			return err
		}
		if err := wants("cancelled wildcard receive", wait(ctx, any), mpi.ErrCancelled); err != nil {
			return err
		}
		if err := sync2(ctx, c, peer, 1); err != nil {
			return err
		}
		if _, err := s.Wait(ctx); err != nil {
			return err
		}
		if err := verify(second, 1); err != nil {
			return fmt.Errorf("the receive behind the cancelled one: %w", err)
		}
		if !slices.Equal(first, make([]byte, n)) {
			return errors.New("a cancelled receive's buffer was written")
		}
		late := mpi.Irecv(c, first, peer, 6)
		for {
			if _, found, err := late.Test(); err != nil {
				return err
			} else if found {
				break
			}
		}
		late.Cancel() // it is spent: nothing
		if err := verify(first, 2); err != nil {
			return err
		}
	}
	return nil
}

// checkCancelSend takes a large message back that nobody receives.
func checkCancelSend(ctx context.Context, c *mpi.Comm) error {
	if !c.Caps().CancelsSends {
		return nil
	}
	const n = 2 << 20
	peer := 1 - c.Rank()
	if c.Rank() == 1 {
		// Only the second message is to be had.
		if err := expect(ctx, c, peer, 2, 2, n); err != nil {
			return err
		}
		if s, found, err := c.Iprobe(peer, mpi.AnyTag); found || err != nil {
			return fmt.Errorf("the cancelled message is still there: %+v, %w", s, err)
		}
		return nil
	}
	buf := filled(1, n)
	r := mpi.Isend(c, buf, peer, 1)
	r.Cancel()
	if err := wants("cancelled send", wait(ctx, r), mpi.ErrCancelled); err != nil {
		return err
	}
	clear(buf)
	fill(buf, 2)
	return mpi.Send(ctx, c, buf, peer, 2)
}

// checkDeadline: a receive whose context ends gives its buffer back, and the
// message goes to the next receive.
func checkDeadline(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	if c.Rank() == 0 {
		if err := sync2(ctx, c, peer, 1); err != nil {
			return err
		}
		return mpi.Send(ctx, c, filled(3, 50_000), peer, 5)
	}
	ended, cancel := context.WithTimeout(ctx, time.Microsecond)
	defer cancel()
	<-ended.Done()
	if err := wants("receive", recvOnly(ended, c, make([]byte, 50_000), peer, 5), context.DeadlineExceeded); err != nil {
		return err
	}
	cause := errors.New("changed my mind")
	cancelled, end := context.WithCancelCause(ctx)
	end(cause)
	if err := wants("any receive", recvOnly(cancelled, c, make([]byte, 50_000), mpi.AnySource, 99), cause); err != nil {
		return err
	}
	if _, err := c.Probe(ended, peer, 5); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("probe: %v", err)
	}
	// WaitAny gives nothing up when its context ends.
	buf := make([]byte, 50_000)
	rs := []mpi.Request{mpi.Irecv(c, buf, peer, 5)}
	if i, _, err := mpi.WaitAny(ended, rs); i != -1 || !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("waitany: index %d, %v", i, err)
	}
	if err := sync2(ctx, c, peer, 1); err != nil {
		return err
	}
	if i, _, err := mpi.WaitAny(ctx, rs); i != 0 || err != nil {
		return fmt.Errorf("waitany again: index %d, %v", i, err)
	}
	return verify(buf, 3)
}

// checkEndedSend: a send whose context has ended says so unless the message is sent.
func checkEndedSend(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for i, n := range []int{8, 100_000, 4 << 20} {
		sent := []byte{0}
		if c.Rank() == 1 {
			buf := make([]byte, n)
			r := mpi.Irecv(c, buf, peer, 10+i)
			if _, err := mpi.Recv(ctx, c, sent, peer, i); err != nil {
				return err
			}
			if sent[0] == 0 {
				r.Cancel()
				if err := wait(ctx, r); err != nil && !errors.Is(err, mpi.ErrCancelled) {
					return fmt.Errorf("%d B: %w", n, err)
				}
			} else if err := errors.Join(wait(ctx, r), verify(buf, uint64(i))); err != nil {
				return fmt.Errorf("%d B that were sent: %w", n, err)
			}
			continue
		}
		err := mpi.Send(ended, c, filled(uint64(i), n), peer, 10+i)
		if err == nil {
			sent[0] = 1
		}
		if err := errors.Join(expected(err, context.Canceled), landed(ctx, err)); err != nil {
			return fmt.Errorf("%d B: %w", n, err)
		}
		if err := mpi.Send(ctx, c, sent, peer, i); err != nil {
			return err
		}
	}
	return nil
}

// checkSendGivenUp: a send that is given up at any moment, also while its data is moving, leaves no receive waiting for
// that: it gets the whole message or the next one.
func checkSendGivenUp(ctx context.Context, c *mpi.Comm) error {
	const n, rounds, tag = 2 << 20, 60, 3
	peer := 1 - c.Rank()
	if c.Rank() == 1 {
		for round := range rounds {
			for over, had := false, false; !over; {
				var buf []byte
				var status mpi.Status
				var err error
				if round%2 == 0 {
					buf = make([]byte, n)
					status, err = mpi.Recv(ctx, c, buf, peer, tag)
				} else {
					buf, status, err = mpi.RecvAlloc[byte](ctx, c, peer, tag)
				}
				switch over = status.Bytes == 0; {
				case err != nil:
					return fmt.Errorf("round %d: %w", round, err)
				case over:
				case had || status.Bytes != n:
					return fmt.Errorf("round %d: a message of %d bytes, another before it: %v", round, status.Bytes, had)
				default:
					had = true
					if err := verify(buf, uint64(round)); err != nil {
						return fmt.Errorf("round %d: %w", round, err)
					}
				}
			}
		}
		return nil
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for round := range rounds {
		buf := filled(uint64(round), n)
		r := mpi.Isend(c, buf, peer, tag)
		var done bool
		var err error
		for tests := 0; tests < round*2 && !done && err == nil; tests++ {
			_, done, err = r.Test()
		}
		if !done && err == nil {
			_, err = r.Wait(ended)
		}
		if err := errors.Join(expected(err, context.Canceled), landed(ctx, err)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		clear(buf)
		if err := mpi.Send(ctx, c, []byte{}, peer, tag); err != nil {
			return err
		}
	}
	return nil
}

// expected is err unless it is nil or what is expected.
func expected(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// landed waits until the buffer of a call that ended with err is free.
func landed(ctx context.Context, err error) error {
	var at *mpi.Error
	if !errors.Is(err, mpi.ErrInFlight) || !errors.As(err, &at) {
		return nil
	}
	select {
	case <-at.Done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("in flight: %w", context.Cause(ctx))
	}
}

func recvOnly(ctx context.Context, c *mpi.Comm, buf []byte, src, tag int) error {
	_, err := mpi.Recv(ctx, c, buf, src, tag)
	return err
}

func checkProbe(ctx context.Context, c *mpi.Comm) error {
	lengths := []int{0, 16, 5000, 300_000}
	if c.Rank() > 0 {
		for i, n := range lengths {
			if err := mpi.Send(ctx, c, filled(uint64(i), n), 0, 10*c.Rank()+i); err != nil {
				return err
			}
		}
		return nil
	}
	for src := 1; src < c.Size(); src++ {
		for i, n := range lengths {
			tag := 10*src + i
			s, err := c.Probe(ctx, mpi.AnySource, tag)
			if err != nil {
				return err
			}
			again, found, err := c.Iprobe(src, mpi.AnyTag)
			if err := errors.Join(err, is(s, src, tag, n)); err != nil {
				return err
			}
			if !found || again != s {
				return fmt.Errorf("second look: %v %+v, want %+v", found, again, s)
			}
			if err := expect(ctx, c, src, tag, uint64(i), n); err != nil {
				return err
			}
		}
	}
	if s, found, err := c.Iprobe(mpi.AnySource, mpi.AnyTag); found || err != nil {
		return fmt.Errorf("nothing is left, but found %v %+v, %w", found, s, err)
	}
	return nil
}

// checkProbeSelf has a goroutine of each rank wait for what another one of the same rank
// sends, when it has had the time to fall asleep: nothing comes from outside then.
func checkProbeSelf(ctx context.Context, c *mpi.Comm) error {
	for i, n := range []int{100, 300_000} {
		err := together(2, func(g int) error {
			if g == 0 {
				s, err := c.Probe(ctx, c.Rank(), i)
				return errors.Join(err, is(s, c.Rank(), i, n), expect(ctx, c, c.Rank(), i, uint64(i), n))
			}
			letSleep(ctx)
			return mpi.Send(ctx, c, filled(uint64(i), n), c.Rank(), i)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// letSleep gives the other goroutines of the rank the time to fall asleep.
func letSleep(ctx context.Context) {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
	}
}

// checkBesideSleeper has a goroutine of rank 1 receive what has been announced already, while
// another one sleeps for something that comes only afterwards.
func checkBesideSleeper(ctx context.Context, c *mpi.Comm) error {
	const long, last = 0, 1
	for i, n := range []int{3000, 9000, 20_000, 300_000} {
		if c.Rank() == 0 {
			for tag, n := range []int{long: n, last: 1} {
				if err := mpi.Send(ctx, c, filled(uint64(i), n), 1, tag); err != nil {
					return err
				}
				if err := expect(ctx, c, 1, tag, 0, 0); err != nil {
					return err
				}
			}
			continue
		}
		receive := func(tag, n int) error {
			if err := expect(ctx, c, 0, tag, uint64(i), n); err != nil {
				return err
			}
			return mpi.Send(ctx, c, []byte{}, 0, tag)
		}
		err := together(2, func(g int) error {
			if g == 0 {
				return receive(last, 1)
			}
			letSleep(ctx)
			return receive(long, n)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func checkRecvAlloc(ctx context.Context, c *mpi.Comm) error {
	for i, n := range []int{0, 1, 1000, 50_000} {
		if c.Rank() == 0 {
			v := make([]int64, n)
			for j := range v {
				v[j] = int64(i + j)
			}
			if err := mpi.Send(ctx, c, v, 1, i); err != nil {
				return err
			}
			continue
		}
		v, s, err := mpi.RecvAlloc[int64](ctx, c, mpi.AnySource, mpi.AnyTag)
		if err != nil {
			return err
		}
		if len(v) != n || s.Tag != i || n > 0 && v[n-1] != int64(i+n-1) {
			return fmt.Errorf("%d elements with status %+v, want %d", len(v), s, n)
		}
	}
	return nil
}
