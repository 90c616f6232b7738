package mpitest

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

func checkProcNull(ctx context.Context, c *mpi.Comm) error {
	buf := []int{7}
	if err := mpi.Send(ctx, c, buf, mpi.ProcNull, 1); err != nil {
		return err
	}
	empty := mpi.Status{Source: mpi.ProcNull, Tag: mpi.AnyTag}
	if s, err := mpi.Recv(ctx, c, buf, mpi.ProcNull, 1); err != nil || s != empty || buf[0] != 7 {
		return fmt.Errorf("receive: status %+v, want %+v, buffer %v, %w", s, empty, buf, err)
	}
	if s, err := c.Probe(ctx, mpi.ProcNull, 1); err != nil || s != empty {
		return fmt.Errorf("probe: status %+v, %w", s, err)
	}
	if err := mpi.WaitAll(ctx, []mpi.Request{mpi.Isend(c, buf, mpi.ProcNull, 0), mpi.Irecv(c, buf, mpi.ProcNull, 0)}); err != nil {
		return err
	}
	posted, tested := mpi.Irecv(c, buf, mpi.ProcNull, 1), mpi.Irecv(c, buf, mpi.ProcNull, 1)
	again := mpi.RecvInit(c, buf, mpi.ProcNull, 1)
	if err := again.Start(); err != nil {
		return err
	}
	for name, call := range map[string]func() (mpi.Status, error){
		"wait":       func() (mpi.Status, error) { return posted.Wait(ctx) },
		"test":       func() (mpi.Status, error) { s, _, err := tested.Test(); return s, err },
		"persistent": func() (mpi.Status, error) { return again.Wait(ctx) },
		"any": func() (mpi.Status, error) {
			_, s, err := mpi.WaitAny(ctx, []mpi.Request{mpi.Irecv(c, buf, mpi.ProcNull, 1)})
			return s, err
		},
		"exchange": func() (mpi.Status, error) { return mpi.Sendrecv(ctx, c, buf, mpi.ProcNull, 1, buf, mpi.ProcNull, 1) },
	} {
		if s, err := call(); err != nil || s != empty {
			return fmt.Errorf("%s: status %+v, want %+v, %w", name, s, empty, err)
		}
	}
	// The ends of a chain.
	left, right := c.Rank()-1, c.Rank()+1
	if left < 0 {
		left = mpi.ProcNull
	}
	if right == c.Size() {
		right = mpi.ProcNull
	}
	got := []int{-1}
	if _, err := mpi.Sendrecv(ctx, c, []int{c.Rank()}, right, 2, got, left, 2); err != nil {
		return err
	}
	if want := c.Rank() - 1; got[0] != want {
		return fmt.Errorf("from the left: %d, want %d", got[0], want)
	}
	return nil
}

func checkBadArguments(ctx context.Context, c *mpi.Comm) error {
	buf := []byte{1}
	recv := func(src, tag int) error { _, err := mpi.Recv(ctx, c, buf, src, tag); return err }
	probe := func(src, tag int) error { _, err := c.Probe(ctx, src, tag); return err }
	iprobe := func(src, tag int) error { _, _, err := c.Iprobe(src, tag); return err }
	send := func(dst, tag int) error { return mpi.Send(ctx, c, buf, dst, tag) }
	isend := func(dst, tag int) error { return wait(ctx, mpi.Isend(c, buf, dst, tag)) }
	irecv := func(src, tag int) error { return wait(ctx, mpi.Irecv(c, buf, src, tag)) }
	cases := []struct {
		name      string
		call      func(peer, tag int) error
		peer, tag int
		want      error
	}{
		{"send beyond the last rank", send, c.Size(), 0, mpi.ErrRank},
		{"send to any rank", send, mpi.AnySource, 0, mpi.ErrRank},
		{"send to rank -3", send, -3, 0, mpi.ErrRank},
		{"send with any tag", send, 0, mpi.AnyTag, mpi.ErrTag},
		{"send with too large a tag", send, 0, mpi.MaxTag + 1, mpi.ErrTag},
		{"isend beyond the last rank", isend, c.Size(), 0, mpi.ErrRank},
		{"isend with tag -2", isend, 0, -2, mpi.ErrTag},
		{"receive beyond the last rank", recv, c.Size(), 0, mpi.ErrRank},
		{"receive from rank -3", recv, -3, 0, mpi.ErrRank},
		{"receive with tag -2", recv, 0, -2, mpi.ErrTag},
		{"receive with too large a tag", recv, 0, mpi.MaxTag + 1, mpi.ErrTag},
		{"irecv beyond the last rank", irecv, 99, 0, mpi.ErrRank},
		{"probe beyond the last rank", probe, 99, 0, mpi.ErrRank},
		{"iprobe with tag -5", iprobe, 0, -5, mpi.ErrTag},
	}
	for _, k := range cases {
		if err := wants(k.name, k.call(k.peer, k.tag), k.want); err != nil {
			return err
		}
	}
	return sync2(ctx, c, 1-c.Rank(), 1) // nothing of it was sent
}

// checkHeadToHead has both ranks send large messages before they receive.
func checkHeadToHead(ctx context.Context, c *mpi.Comm) error {
	const count, n = 6, 3 << 20
	peer := 1 - c.Rank()
	rs := make([]mpi.Request, count)
	for i := range rs {
		rs[i] = mpi.Isend(c, filled(uint64(i+c.Rank()), n+i), peer, i)
	}
	for i := range rs {
		if err := expect(ctx, c, peer, i, uint64(i+peer), n+i); err != nil {
			return err
		}
	}
	return mpi.WaitAll(ctx, rs)
}

func checkSendrecvRing(ctx context.Context, c *mpi.Comm) error {
	right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	for i, n := range []int{1, 20_000, 1 << 20} {
		buf := make([]byte, n)
		s, err := mpi.Sendrecv(ctx, c, filled(uint64(c.Rank()), n), right, i, buf, left, i)
		if err := errors.Join(err, is(s, left, i, n), verify(buf, uint64(left))); err != nil {
			return err
		}
	}
	return nil
}

func checkThousandsOutstanding(ctx context.Context, c *mpi.Comm) error {
	const count = 6000
	peer := 1 - c.Rank()
	rs := make([]mpi.Request, 0, 2*count)
	in := make([][]int, count)
	for i := range count {
		in[i] = []int{-1}
		rs = append(rs, mpi.Irecv(c, in[i], peer, i))
	}
	for i := count - 1; i >= 0; i-- {
		rs = append(rs, mpi.Isend(c, []int{i * 3}, peer, i))
	}
	if err := mpi.WaitAll(ctx, rs); err != nil {
		return err
	}
	for i := range in {
		if in[i][0] != i*3 {
			return fmt.Errorf("message %d holds %d", i, in[i][0])
		}
	}
	return nil
}

// checkFlood sends far more than a receiver that is busy elsewhere can hold.
func checkFlood(ctx context.Context, c *mpi.Comm) error {
	const count, n = 5000, 1500
	if c.Rank() > 0 {
		buf := make([]byte, n)
		for i := range count {
			fill(buf, uint64(i))
			if err := mpi.Send(ctx, c, buf, 0, 1); err != nil {
				return err
			}
		}
		return mpi.Send(ctx, c, buf, 0, 2)
	}
	for src := c.Size() - 1; src > 0; src-- {
		for i := range count {
			if err := expect(ctx, c, src, 1, uint64(i), n); err != nil {
				return fmt.Errorf("message %d from rank %d: %w", i, src, err)
			}
		}
		if err := expect(ctx, c, src, 2, count-1, n); err != nil {
			return err
		}
	}
	return nil
}

func checkWaitAny(ctx context.Context, c *mpi.Comm) error {
	const each = 20
	if c.Rank() > 0 {
		for i := range each {
			if err := mpi.Send(ctx, c, []int{i}, 0, i); err != nil {
				return err
			}
		}
		return nil
	}
	var rs []mpi.Request
	var bufs [][]int
	for src := 1; src < c.Size(); src++ {
		for i := range each {
			b := []int{-1}
			bufs = append(bufs, b)
			rs = append(rs, mpi.Irecv(c, b, src, i))
		}
	}
	rs = append(rs, mpi.Request{}) // a null request is passed over
	for range len(bufs) {
		i, s, err := mpi.WaitAny(ctx, rs)
		if err != nil {
			return err
		}
		if i < 0 || i >= len(bufs) || !rs[i].Null() {
			return fmt.Errorf("index %d, spent request null: %v", i, i >= 0 && rs[i].Null())
		}
		if err := is(s, i/each+1, i%each, mpi.SizeOf[int]()); err != nil {
			return err
		}
		if bufs[i][0] != i%each {
			return fmt.Errorf("request %d received %d", i, bufs[i][0])
		}
	}
	if i, _, err := mpi.WaitAny(ctx, rs); i != -1 || err != nil {
		return fmt.Errorf("with null requests only: index %d, %w", i, err)
	}
	return nil
}

// checkWaitAll: all are waited for, although one fails.
func checkWaitAll(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	short, long := make([]byte, 5), make([]byte, 70_000)
	rs := []mpi.Request{
		{}, mpi.Irecv(c, short, peer, 0), mpi.Irecv(c, long, peer, 1),
		mpi.Isend(c, filled(1, 100), peer, 0), mpi.Isend(c, filled(2, 70_000), peer, 1),
	}
	if err := wants("WaitAll", mpi.WaitAll(ctx, rs), mpi.ErrTruncated); err != nil {
		return err
	}
	for i, r := range rs {
		if !r.Null() {
			return fmt.Errorf("request %d is not null", i)
		}
	}
	return verify(long, 2)
}

func checkTestLoop(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	for i, n := range []int{4, 9000, 500_000} {
		buf := make([]byte, n)
		in, out := mpi.Irecv(c, buf, peer, i), mpi.Isend(c, filled(uint64(i), n), peer, i)
		for received, sent := false, false; !received || !sent; {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !received {
				s, done, err := in.Test()
				if err != nil {
					return err
				}
				if done {
					received = true
					if err := is(s, peer, i, n); err != nil {
						return err
					}
				}
			}
			if !sent {
				_, done, err := out.Test()
				if err != nil {
					return err
				}
				sent = done
			}
		}
		if err := verify(buf, uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// checkSpentRequests: a request that has been waited for is noticed, also
// when its operation's memory serves another.
func checkSpentRequests(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	buf := []byte{0}
	old := mpi.Irecv(c, buf, peer, 1)
	if err := errors.Join(mpi.Send(ctx, c, []byte{5}, peer, 1), wait(ctx, old)); err != nil {
		return err
	}
	if err := wants("waiting twice", wait(ctx, old), mpi.ErrRequest); err != nil {
		return err
	}
	next := mpi.Irecv(c, buf, peer, 2)
	if _, _, err := old.Test(); !errors.Is(err, mpi.ErrRequest) {
		return fmt.Errorf("testing a spent request: %v", err)
	}
	old.Cancel()
	if err := errors.Join(mpi.Send(ctx, c, []byte{6}, peer, 2), wait(ctx, next)); err != nil {
		return fmt.Errorf("the request after it: %w", err)
	}
	var null mpi.Request
	if s, err := null.Wait(ctx); err != nil || s != (mpi.Status{}) {
		return fmt.Errorf("null request: %+v, %w", s, err)
	}
	if _, done, err := null.Test(); !done || err != nil {
		return fmt.Errorf("null request: not done, %w", err)
	}
	<-null.Done()
	return nil
}

func checkPersistent(ctx context.Context, c *mpi.Comm) error {
	const rounds = 100
	peer := 1 - c.Rank()
	for k, n := range []int{3, 20_000} {
		out, in := make([]int64, n), make([]int64, n)
		send, recv := mpi.SendInit(c, out, peer, k), mpi.RecvInit(c, in, mpi.AnySource, k)
		if s, err := recv.Wait(ctx); err != nil || s != (mpi.Status{}) {
			return fmt.Errorf("waiting before the start: %+v, %w", s, err)
		}
		for i := range rounds {
			for j := range out {
				out[j] = int64(i*n + j + c.Rank())
			}
			if err := errors.Join(recv.Start(), send.Start()); err != nil {
				return err
			}
			if i == 0 {
				if err := wants("starting twice", recv.Start(), mpi.ErrRequest); err != nil {
					return err
				}
			}
			s, err := recv.Wait(ctx)
			if err != nil {
				return err
			}
			if _, err := send.Wait(ctx); err != nil {
				return err
			}
			if err := is(s, peer, k, 8*n); err != nil {
				return err
			}
			if in[0] != int64(i*n+peer) || in[n-1] != int64(i*n+n-1+peer) {
				return fmt.Errorf("round %d: %d … %d", i, in[0], in[n-1])
			}
		}
	}
	return checkPersistentTest(ctx, c)
}

// A receive that is given up can be started again, and its end found by Test.
func checkPersistentTest(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	out, in := []int64{int64(c.Rank())}, make([]int64, 1)
	send, recv := mpi.SendInit(c, out, peer, 5), mpi.RecvInit(c, in, peer, 5)
	if s, done, err := recv.Test(); !done || err != nil || s != (mpi.Status{}) {
		return fmt.Errorf("testing before the start: %+v, %v, %w", s, done, err)
	}
	recv.Cancel()
	if err := recv.Start(); err != nil {
		return err
	}
	if _, done, err := recv.Test(); done || err != nil {
		return fmt.Errorf("a receive that nobody has sent to: %v, %w", done, err)
	}
	if err := wants("starting what a test has not ended", recv.Start(), mpi.ErrRequest); err != nil {
		return err
	}
	if err := cancelled(ctx, recv); err != nil {
		return err
	}
	if err := errors.Join(sync2(ctx, c, peer, 6), recv.Start(), send.Start()); err != nil {
		return err
	}
	for {
		s, done, err := recv.Test()
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case done && in[0] != int64(peer):
			return fmt.Errorf("received %d, want %d", in[0], peer)
		case done:
			_, err := send.Wait(ctx)
			return errors.Join(is(s, peer, 5, 8), err, recv.Start(), cancelled(ctx, recv))
		}
	}
}

// cancelled gives a receive up that nobody sends to.
func cancelled(ctx context.Context, p *mpi.Persistent) error {
	p.Cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, mpi.ErrCancelled) {
		return fmt.Errorf("given up: %w, want ErrCancelled", err)
	}
	return nil
}
