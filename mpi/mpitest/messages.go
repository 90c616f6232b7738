package mpitest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// sizes lie around the borders of protocols.
func sizes() []int {
	s := []int{0, 1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 100, 255, 256, 257, 1000}
	for n := 1 << 10; n <= 1<<20; n *= 2 {
		s = append(s, n-1, n, n+1)
	}
	return append(s, 3<<20+5)
}

func checkSizes(ctx context.Context, c *mpi.Comm) error {
	peer := 1 - c.Rank()
	for i, n := range sizes() {
		if c.Rank() == 0 {
			if err := mpi.Send(ctx, c, filled(uint64(i), n), peer, i); err != nil {
				return fmt.Errorf("%d B: %w", n, err)
			}
		}
		if err := expect(ctx, c, peer, i, uint64(i+1-c.Rank()), n); err != nil {
			return fmt.Errorf("%d B: %w", n, err)
		}
		if c.Rank() == 1 {
			if err := mpi.Send(ctx, c, filled(uint64(i+1), n), peer, i); err != nil {
				return fmt.Errorf("%d B: %w", n, err)
			}
		}
	}
	return nil
}

// exchange sends values of a type to the other of two ranks and compares what comes back.
func exchange[T mpi.Elem](ctx context.Context, c *mpi.Comm, values ...T) error {
	got := make([]T, len(values)+1)
	s, err := mpi.Sendrecv(ctx, c, values, 1-c.Rank(), 3, got, 1-c.Rank(), 3)
	if err != nil {
		return err
	}
	if n := mpi.Count[T](s); n != len(values) || !slices.Equal(got[:n], values) {
		return fmt.Errorf("%d elements %v, want %v", n, got[:n], values)
	}
	return nil
}

type celsius float32

func checkTypes(ctx context.Context, c *mpi.Comm) error {
	return errors.Join(
		exchange(ctx, c, int8(math.MinInt8), -1, math.MaxInt8),
		exchange(ctx, c, int16(math.MinInt16), math.MaxInt16),
		exchange(ctx, c, int32(math.MinInt32), math.MaxInt32),
		exchange(ctx, c, int64(math.MinInt64), math.MaxInt64),
		exchange(ctx, c, math.MinInt, math.MaxInt),
		exchange(ctx, c, uint8(0), math.MaxUint8),
		exchange(ctx, c, uint16(0), math.MaxUint16),
		exchange(ctx, c, uint32(0), math.MaxUint32),
		exchange(ctx, c, uint64(0), math.MaxUint64),
		exchange(ctx, c, uint(0), math.MaxUint),
		exchange(ctx, c, float32(math.Pi), math.MaxFloat32, float32(math.Inf(-1))),
		exchange(ctx, c, math.Pi, math.SmallestNonzeroFloat64, math.Inf(1)),
		exchange(ctx, c, complex64(1+2i)),
		exchange(ctx, c, 3-4i),
		exchange(ctx, c, celsius(36.6)),
	)
}

func checkZeroLength(ctx context.Context, c *mpi.Comm) error {
	if c.Rank() == 0 {
		for i, buf := range [][]int32{nil, {}, make([]int32, 0, 5)} {
			if err := mpi.Send(ctx, c, buf, 1, i); err != nil {
				return err
			}
		}
		return wait(ctx, mpi.Isend(c, []int32(nil), 1, 9))
	}
	for i, buf := range [][]int32{nil, {}, make([]int32, 3)} {
		s, err := mpi.Recv(ctx, c, buf, 0, i)
		if err != nil {
			return err
		}
		if err := is(s, 0, i, 0); err != nil {
			return err
		}
	}
	s, err := c.Probe(ctx, mpi.AnySource, mpi.AnyTag)
	if err != nil {
		return err
	}
	if err := is(s, 0, 9, 0); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	_, err = mpi.Recv(ctx, c, []int32(nil), 0, 9)
	return err
}

// checkOrderOfOneTag mixes sizes that travel by different protocols: none
// overtakes another.
func checkOrderOfOneTag(ctx context.Context, c *mpi.Comm) error {
	const count = 300
	size := func(i int) int { return []int{8, 40_000, 0, 700, 9000, 200_000, 16, 3000}[i%8] + i%3 }
	if c.Rank() == 0 {
		rs := make([]mpi.Request, count)
		for i := range rs {
			rs[i] = mpi.Isend(c, filled(uint64(i), size(i)), 1, 4)
		}
		return mpi.WaitAll(ctx, rs)
	}
	for i := range count {
		if err := expect(ctx, c, 0, 4, uint64(i), size(i)); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	return nil
}

// checkOrderOfManyTags receives by tag, in another order than sent.
func checkOrderOfManyTags(ctx context.Context, c *mpi.Comm) error {
	const tags, each = 10, 12
	size := func(tag, i int) int { return (tag*7919+i*104729)%30_000 + 1 }
	if c.Rank() == 0 {
		var rs []mpi.Request
		for i := range each {
			for tag := range tags {
				rs = append(rs, mpi.Isend(c, filled(uint64(tag*100+i), size(tag, i)), 1, tag))
			}
		}
		return mpi.WaitAll(ctx, rs)
	}
	for tag := tags - 1; tag >= 0; tag-- {
		for i := range each {
			if err := expect(ctx, c, 0, tag, uint64(tag*100+i), size(tag, i)); err != nil {
				return fmt.Errorf("tag %d, message %d: %w", tag, i, err)
			}
		}
	}
	return nil
}

// checkPostedBeforeAndAfter has receives wait for messages, and messages for
// receives.
func checkPostedBeforeAndAfter(ctx context.Context, c *mpi.Comm) error {
	const count = 40
	size := func(i int) int { return []int{0, 8, 5000, 70_000}[i%4] }
	for round := range 4 {
		before := round%2 == 0 // receives are posted before anything is sent
		rs, bufs := make([]mpi.Request, count), make([][]byte, count)
		work := func() {
			for i := range rs {
				if c.Rank() == 0 {
					rs[i] = mpi.Isend(c, filled(uint64(i), size(i)), 1, 2)
				} else {
					bufs[i] = make([]byte, size(i))
					rs[i] = mpi.Irecv(c, bufs[i], 0, 2)
				}
			}
		}
		first := before == (c.Rank() == 1)
		if first {
			work()
		}
		if err := sync2(ctx, c, 1-c.Rank(), 1); err != nil {
			return err
		}
		if !first {
			work()
		}
		for i := range rs {
			s, err := rs[i].Wait(ctx)
			if err == nil && c.Rank() == 1 {
				err = errors.Join(is(s, 0, 2, size(i)), verify(bufs[i], uint64(i)))
			}
			if err != nil {
				return fmt.Errorf("message %d, receives first: %v: %w", i, before, err)
			}
		}
	}
	return nil
}

func checkAnySource(ctx context.Context, c *mpi.Comm) error {
	const each = 60
	size := func(from, i int) int { return 1 + (from*31+i*977)%20_000 }
	if c.Rank() > 0 {
		for i := range each {
			if err := mpi.Send(ctx, c, filled(uint64(c.Rank()*1000+i), size(c.Rank(), i)), 0, i); err != nil {
				return err
			}
		}
		return nil
	}
	next := make([]int, c.Size())
	buf := make([]byte, 20_001)
	for range each * (c.Size() - 1) {
		s, err := mpi.Recv(ctx, c, buf, mpi.AnySource, mpi.AnyTag)
		if err != nil {
			return err
		}
		i := next[s.Source]
		next[s.Source]++
		if err := errors.Join(is(s, s.Source, i, size(s.Source, i)), verify(buf[:s.Bytes], uint64(s.Source*1000+i))); err != nil {
			return fmt.Errorf("message %d from rank %d: %w", i, s.Source, err)
		}
	}
	return nil
}

func checkAnyTag(ctx context.Context, c *mpi.Comm) error {
	tags := []int{5, 0, mpi.MaxTag, 77, 5}
	if c.Rank() == 0 {
		for i, tag := range tags {
			if err := mpi.Send(ctx, c, []int{i}, 1, tag); err != nil {
				return err
			}
		}
		return nil
	}
	for i, tag := range tags {
		got := []int{-1}
		s, err := mpi.Recv(ctx, c, got, 0, mpi.AnyTag)
		if err != nil {
			return err
		}
		if s.Tag != tag || got[0] != i {
			return fmt.Errorf("message %d: tag %d value %d, want tag %d", i, s.Tag, got[0], tag)
		}
	}
	return nil
}

// checkWildcardsInOrder: of two receives that match a message the first posted
// gets it, with and without wildcards.
func checkWildcardsInOrder(ctx context.Context, c *mpi.Comm) error {
	if c.Rank() != 2 {
		if _, err := mpi.Recv(ctx, c, make([]byte, 1), 2, 100); err != nil {
			return err
		}
		if c.Rank() == 1 { // after rank 0's have been received
			return mpi.Send(ctx, c, []int{50}, 2, 8)
		}
		for i := range 4 {
			if err := mpi.Send(ctx, c, []int{i}, 2, 7); err != nil {
				return err
			}
		}
		return nil
	}
	bufs := make([][]int, 5)
	post := func(i, src, tag int) mpi.Request {
		bufs[i] = []int{-1}
		return mpi.Irecv(c, bufs[i], src, tag)
	}
	rs := []mpi.Request{
		post(0, mpi.AnySource, 7), post(1, 0, mpi.AnyTag), post(2, 0, 7), post(3, mpi.AnySource, mpi.AnyTag), post(4, mpi.AnySource, 8),
	}
	if err := mpi.Send(ctx, c, []byte{1}, 0, 100); err != nil {
		return err
	}
	for i := range 4 {
		if _, err := rs[i].Wait(ctx); err != nil {
			return err
		}
		if bufs[i][0] != i {
			return fmt.Errorf("receive %d got message %d", i, bufs[i][0])
		}
	}
	if err := mpi.Send(ctx, c, []byte{1}, 1, 100); err != nil {
		return err
	}
	s, err := rs[4].Wait(ctx)
	if err != nil || bufs[4][0] != 50 {
		return fmt.Errorf("the last receive: value %d, %w", bufs[4][0], err)
	}
	return is(s, 1, 8, mpi.SizeOf[int]())
}

// checkTruncation: too long a message is an error that tells its length; the
// next message is not harmed.
func checkTruncation(ctx context.Context, c *mpi.Comm) error {
	cases := []struct{ sent, room int }{{100, 10}, {3000, 0}, {9000, 8999}, {200_000, 1}, {1 << 20, 1000}}
	for i, k := range cases {
		if c.Rank() == 0 {
			if err := mpi.Send(ctx, c, filled(uint64(i), k.sent), 1, i); err != nil {
				return fmt.Errorf("sender of %d B: %w", k.sent, err)
			}
			if err := mpi.Send(ctx, c, filled(uint64(i+100), 300), 1, i); err != nil {
				return err
			}
			continue
		}
		buf := make([]byte, k.room+16)
		s, err := mpi.Recv(ctx, c, buf[:k.room], 0, i)
		if err := wants(fmt.Sprintf("%d B into %d", k.sent, k.room), err, mpi.ErrTruncated); err != nil {
			return err
		}
		if s.Bytes != k.sent {
			return fmt.Errorf("%d B into %d: the status says %d B", k.sent, k.room, s.Bytes)
		}
		if err := verify(buf[:k.room], uint64(i)); err != nil {
			return fmt.Errorf("%d B into %d: %w", k.sent, k.room, err)
		}
		if !slices.Equal(buf[k.room:], make([]byte, 16)) {
			return fmt.Errorf("%d B into %d: bytes beyond the buffer were written", k.sent, k.room)
		}
		if err := expect(ctx, c, 0, i, uint64(i+100), 300); err != nil {
			return fmt.Errorf("after %d B into %d: %w", k.sent, k.room, err)
		}
	}
	return nil
}

func checkSelf(ctx context.Context, c *mpi.Comm) error {
	me := c.Rank()
	for i, n := range []int{0, 8, 5000, 100_000, 2 << 20} {
		// A message that waits for its receive, and a receive that waits.
		late := mpi.Isend(c, filled(uint64(i), n), me, i)
		if err := expect(ctx, c, me, i, uint64(i), n); err != nil {
			return fmt.Errorf("%d B, sent first: %w", n, err)
		}
		if err := wait(ctx, late); err != nil {
			return err
		}
		buf := make([]byte, n)
		early := mpi.Irecv(c, buf, mpi.AnySource, mpi.AnyTag)
		if err := mpi.Send(ctx, c, filled(uint64(i+9), n), me, i); err != nil {
			return err
		}
		s, err := early.Wait(ctx)
		if err := errors.Join(err, is(s, me, i, n), verify(buf, uint64(i+9))); err != nil {
			return fmt.Errorf("%d B, received first: %w", n, err)
		}
	}
	long := mpi.Isend(c, filled(1, 1000), me, 1)
	if _, err := mpi.Recv(ctx, c, make([]byte, 10), me, 1); !errors.Is(err, mpi.ErrTruncated) {
		return fmt.Errorf("truncated to itself: %v", err)
	}
	if err := wait(ctx, long); err != nil {
		return err
	}
	var rs []mpi.Request
	for i := range 10 {
		rs = append(rs, mpi.Isend(c, []int{i}, me, 2))
	}
	for i := range 10 {
		got := []int{0}
		if _, err := mpi.Recv(ctx, c, got, me, 2); err != nil || got[0] != i {
			return fmt.Errorf("order to itself: %d in place %d, %w", got[0], i, err)
		}
	}
	if err := mpi.WaitAll(ctx, rs); err != nil {
		return err
	}
	got := []int{0}
	if _, err := mpi.Sendrecv(ctx, c, []int{42}, me, 3, got, me, 3); err != nil || got[0] != 42 {
		return fmt.Errorf("sendrecv with itself: %d, %w", got[0], err)
	}
	if _, found, err := c.Iprobe(me, mpi.AnyTag); found || err != nil {
		return fmt.Errorf("something is left over: %v, %w", found, err)
	}
	return nil
}

// checkLarge: lengths do not fit 32 bits.
func checkLarge(ctx context.Context, c *mpi.Comm) error {
	const n = 1<<32 + 1<<16 + 5
	defer debug.FreeOSMemory() // the next check needs as much, perhaps in other processes
	buf := make([]byte, n)
	if c.Rank() == 0 {
		fill(buf, 1)
		return mpi.Send(ctx, c, buf, 1, 0)
	}
	s, err := mpi.Recv(ctx, c, buf, 0, 0)
	if err != nil {
		return err
	}
	return errors.Join(is(s, 0, 0, n), verify(buf, 1))
}
