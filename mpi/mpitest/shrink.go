package mpitest

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// The checks of what survivors do after a loss: revoke, and go on with a communicator of their own.

// lossRevoke: one rank's Revoke ends what the others wait for.
func lossRevoke(ctx context.Context, c *mpi.Comm, die func()) error {
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	if last(c) {
		// Dies only when everybody has left the duplicate.
		return dieAfterAll(ctx, c, die)
	}
	if c.Rank() == 0 {
		if err := mpi.Send(ctx, d, []byte{1}, 1, 0); err != nil {
			return err
		}
		// A large message that is announced here, and that nobody will receive.
		if _, err := d.Probe(ctx, 2, 2); err != nil {
			return err
		}
		d.Revoke()
		d.Revoke() // once more is nothing
	} else {
		if c.Rank() == 1 {
			// It may come before or after the message that was sent first: then it is gone.
			if err := recvOnly(ctx, d, make([]byte, 1), 0, 0); err != nil && !errors.Is(err, mpi.ErrRevoked) {
				return err
			}
		}
		if c.Rank() == 2 {
			if err := wants("pending large send", mpi.Send(ctx, d, make([]byte, 4<<20), 0, 2), mpi.ErrRevoked); err != nil {
				return err
			}
		}
		if err := wants("pending receive", recvOnly(ctx, d, make([]byte, 1), (c.Rank()+1)%c.Size(), 1), mpi.ErrRevoked); err != nil {
			return err
		}
	}
	_, dupErr := d.Dup(ctx)
	_, probeErr := d.Probe(ctx, mpi.AnySource, 0)
	err = errors.Join(
		wants("send", mpi.Send(ctx, d, []byte{1}, 0, 0), mpi.ErrRevoked),
		wants("receive", recvOnly(ctx, d, make([]byte, 1), mpi.AnySource, 0), mpi.ErrRevoked),
		wants("probe", probeErr, mpi.ErrRevoked),
		wants("dup", dupErr, mpi.ErrRevoked),
	)
	if err != nil {
		return err
	}
	// The original works as before.
	if err := mpi.Send(ctx, c, filled(5, 8), c.Size()-1, 5); err != nil {
		return err
	}
	return mourn(ctx, c, c.Size()-1)
}

// survivors checks a communicator made by Shrink and uses it.
func survivors(ctx context.Context, s *mpi.Comm, worldRanks []int) error {
	if s.Size() != len(worldRanks) {
		return fmt.Errorf("%v, want %d ranks", s, len(worldRanks))
	}
	for r, w := range worldRanks {
		if s.WorldRank(r) != w {
			return fmt.Errorf("%v: rank %d is world rank %d, want %d", s, r, s.WorldRank(r), w)
		}
	}
	if len(s.Lost()) > 0 {
		return fmt.Errorf("%v lost %v", s, s.Lost())
	}
	if err := shift(ctx, s, 1, s.WorldRank(s.Rank()), func(left int) int { return worldRanks[left] }); err != nil {
		return err
	}
	d, err := s.Dup(ctx)
	if err != nil {
		return err
	}
	return shift(ctx, d, 1, d.Rank(), func(left int) int { return left })
}

func upTo(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func lossShrink(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		die()
		return nil
	}
	if c.Rank() == 1 {
		// One notices and revokes; the others may be anywhere.
		if err := mourn(ctx, c, c.Size()-1); err != nil {
			return err
		}
		c.Revoke()
	} else if err := recvOnly(ctx, c, make([]byte, 1), 1, 1); !errors.Is(err, mpi.ErrRevoked) {
		return fmt.Errorf("receive on the revoked communicator: %v", err)
	}
	s, err := c.Shrink(ctx)
	if err != nil {
		return err
	}
	return survivors(ctx, s, upTo(c.Size()-1))
}

// lossShrinkTwice loses a second rank, the one that led the first agreement.
func lossShrinkTwice(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		die()
		return nil
	}
	if err := mourn(ctx, c, c.Size()-1); err != nil {
		return err
	}
	s, err := c.Shrink(ctx)
	if err != nil {
		return err
	}
	if c.Rank() == 0 {
		die()
		return nil
	}
	if s.WorldRank(0) == 0 { // else it died before anybody knew what it had decided
		if err := mourn(ctx, s, 0); err != nil {
			return err
		}
		if s, err = s.Shrink(ctx); err != nil {
			return fmt.Errorf("second shrink: %w", err)
		}
	}
	return survivors(ctx, s, upTo(c.Size() - 1)[1:])
}
