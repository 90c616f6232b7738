package mpitest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// The calls of the soak that block.

// takeBack offers a message that nobody receives, and takes it back.
func (s *soak) takeBack(ctx context.Context, c *mpi.Comm, round int) error {
	if !c.Caps().CancelsSends || s.own.IntN(4) > 0 {
		return nil
	}
	r := mpi.Isend(c, make([]byte, 1<<20), s.own.IntN(c.Size()), s.tag(round, takenBackTag))
	r.Cancel()
	return wants("cancelled send", wait(ctx, r), mpi.ErrCancelled)
}

// exchange has every rank send to the one some places on and receive from the one as far back.
func (s *soak) exchange(ctx context.Context, c *mpi.Comm, round int) error {
	r := rand.New(rand.NewPCG(s.seed, 1<<63|uint64(round)<<16|uint64(s.g)))
	places, n := r.IntN(c.Size()), r.IntN(1+r.IntN(100_000))
	to, from := (c.Rank()+places)%c.Size(), (c.Rank()-places+c.Size())%c.Size()
	id := func(rank int) uint64 { return s.seed ^ uint64(rank*1000+round) }
	tag, in := s.tag(round, exchangeTag), make([]byte, n)
	status, err := mpi.Sendrecv(ctx, c, filled(id(c.Rank()), n), to, tag, in, from, tag)
	if err := errors.Join(err, is(status, from, tag, n), verify(in, id(from))); err != nil {
		return fmt.Errorf("exchange with ranks %d and %d: %w", to, from, err)
	}
	return nil
}

// receive receives messages by blocking calls. Those of one source and tag
// come in the order of the plan.
func (s *soak) receive(ctx context.Context, c *mpi.Comm, ms []*planned) error {
	for _, m := range ms {
		var b []byte
		var status mpi.Status
		var err error
		switch s.own.IntN(4) {
		case 0:
			b, status, err = mpi.RecvAlloc[byte](ctx, c, m.src, m.tag)
		case 1:
			if status, err = c.Probe(ctx, m.src, m.tag); err == nil {
				b = make([]byte, status.Bytes)
				status, err = mpi.Recv(ctx, c, b, m.src, m.tag)
			}
		case 2:
			if status, err = look(ctx, c, m.src, m.tag); err == nil {
				b = make([]byte, status.Bytes)
				status, err = mpi.Recv(ctx, c, b, status.Source, status.Tag)
			}
		default:
			b = make([]byte, m.size)
			status, err = mpi.Recv(ctx, c, b, m.src, m.tag)
		}
		if err := errors.Join(err, is(status, m.src, m.tag, m.size)); err != nil {
			return err
		}
		if err := m.verify(b, s.seed); err != nil {
			return fmt.Errorf("from rank %d: %w", m.src, err)
		}
	}
	return nil
}

// look is Probe by a few looks of Iprobe first.
func look(ctx context.Context, c *mpi.Comm, src, tag int) (mpi.Status, error) {
	for range 10 {
		if status, found, err := c.Iprobe(src, tag); found || err != nil {
			return status, err
		}
	}
	return c.Probe(ctx, src, tag)
}

// receiveWild receives messages from any rank until all have come.
func (s *soak) receiveWild(ctx context.Context, c *mpi.Comm, wild map[uint64]*planned, tag int) error {
	buf := make([]byte, 400_016)
	for len(wild) > 0 {
		status, err := mpi.Recv(ctx, c, buf, mpi.AnySource, tag)
		if err != nil {
			return err
		}
		if status.Bytes < 16 {
			return fmt.Errorf("wildcard receive: %+v", status)
		}
		id := binary.LittleEndian.Uint64(buf)
		m := wild[id]
		if m == nil {
			return fmt.Errorf("wildcard receive: message %#x is not expected, or came twice", id)
		}
		delete(wild, id)
		if err := errors.Join(is(status, m.src, m.tag, m.size), m.verify(buf[:status.Bytes], s.seed)); err != nil {
			return fmt.Errorf("from rank %d: %w", m.src, err)
		}
	}
	return nil
}
