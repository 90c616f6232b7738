package mpitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// LossCheck is one thing that communicators must do when a rank dies. The
// last rank is the one that does, by calling die.
type LossCheck struct {
	Name      string
	Ranks     int
	Run       func(ctx context.Context, c *mpi.Comm, die func()) error
	FirstDies bool // rank 0 dies, too, later
}

// LossChecks are those of Losses.
func LossChecks() []LossCheck {
	return []LossCheck{
		{Name: "PendingReceive", Ranks: 3, Run: lossPendingReceive},
		{Name: "PendingSend", Ranks: 3, Run: lossPendingSend},
		{Name: "SendUnderWay", Ranks: 3, Run: lossSendUnderWay},
		{Name: "StreamOfSends", Ranks: 3, Run: lossStream},
		{Name: "LaterOperations", Ranks: 3, Run: lossLaterOperations},
		{Name: "SentBefore", Ranks: 2, Run: lossSentBefore},
		{Name: "AnySource", Ranks: 4, Run: lossAnySource},
		{Name: "Probe", Ranks: 3, Run: lossProbe},
		{Name: "OthersGoOn", Ranks: 4, Run: lossOthersGoOn},
		{Name: "OtherCommunicators", Ranks: 4, Run: lossOtherCommunicators},
		{Name: "SplitWithTheDead", Ranks: 3, Run: lossSplit},
		{Name: "Revoke", Ranks: 4, Run: lossRevoke},
		{Name: "Shrink", Ranks: 5, Run: lossShrink},
		{Name: "WindowTarget", Ranks: 5, Run: lossWindowTarget},
		{Name: "WindowHolder", Ranks: 4, Run: lossWindowHolder},
		{Name: "ShrinkTwice", Ranks: 5, Run: lossShrinkTwice, FirstDies: true},
	}
}

// Losses runs every check of losses.
func Losses(t *testing.T, run KillRunner) {
	for _, check := range LossChecks() {
		t.Run(check.Name, func(t *testing.T) { run(t, check.Ranks, check.Run) })
	}
}

// last reports whether this rank is the one that dies.
func last(c *mpi.Comm) bool { return c.Rank() == c.Size()-1 }

// names checks that an error says which rank was lost, and on which host.
func names(what string, err error, c *mpi.Comm, rank int) error {
	if err := wants(what, err, mpi.ErrPeerLost); err != nil {
		return err
	}
	var at *mpi.Error
	errors.As(err, &at)
	if at.Peer != rank || at.Host != c.Host(rank) {
		return fmt.Errorf("%s: %v names rank %d on %q, want %d on %q", what, err, at.Peer, at.Host, rank, c.Host(rank))
	}
	return nil
}

// mourn waits until the loss of a rank is known here.
func mourn(ctx context.Context, c *mpi.Comm, rank int) error {
	return names("receive from the dead rank", recvOnly(ctx, c, make([]byte, 1), rank, 999), c, rank)
}

// greetAll exchanges a message with every other rank, so that connections exist.
func greetAll(ctx context.Context, c *mpi.Comm) error {
	var rs []mpi.Request
	for r := range c.Size() {
		if r != c.Rank() {
			rs = append(rs, mpi.Isend(c, []byte{1}, r, 900), mpi.Irecv(c, make([]byte, 1), r, 900))
		}
	}
	return mpi.WaitAll(ctx, rs)
}

// lastDies has the last rank die when all have met, and reports which that is and whether this one lives on.
func lastDies(ctx context.Context, c *mpi.Comm, die func()) (dead int, lives bool, err error) {
	if err := greetAll(ctx, c); err != nil {
		return 0, false, err
	}
	if last(c) {
		die()
		return 0, false, nil
	}
	return c.Size() - 1, true, nil
}

func lossPendingReceive(ctx context.Context, c *mpi.Comm, die func()) error {
	dead, lives, err := lastDies(ctx, c, die)
	if !lives {
		return err
	}
	rs := []mpi.Request{mpi.Irecv(c, make([]byte, 10), dead, 1), mpi.Irecv(c, make([]byte, 1<<20), dead, mpi.AnyTag)}
	for _, r := range rs {
		if err := names("pending receive", wait(ctx, r), c, dead); err != nil {
			return err
		}
	}
	if got := c.Lost(); !slices.Equal(got, []int{dead}) {
		return fmt.Errorf("lost %v, want [%d]", got, dead)
	}
	return nil
}

// lossPendingSend: large messages that the dead rank will never read fail,
// and their memory is the sender's again.
func lossPendingSend(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		// Each of the others is inside a large send when this rank dies.
		for src := range c.Size() - 1 {
			if _, err := c.Probe(ctx, src, 1); err != nil {
				return err
			}
		}
		die()
		return nil
	}
	buf := filled(1, 8<<20)
	err := mpi.Send(ctx, c, buf, c.Size()-1, 1)
	clear(buf)
	return names("large send", err, c, c.Size()-1)
}

// lossSendUnderWay: the dead rank has begun to receive the large messages, and each of their
// senders learns that it is lost, whoever notices first.
func lossSendUnderWay(ctx context.Context, c *mpi.Comm, die func()) error {
	const n = 32 << 20
	dead := c.Size() - 1
	if !last(c) {
		buf := filled(1, n)
		err := mpi.Send(ctx, c, buf, dead, 1)
		clear(buf)
		if err == nil {
			return mourn(ctx, c, dead) // it was slow to die
		}
		return names("large send", err, c, dead)
	}
	for src := range dead {
		if _, err := c.Probe(ctx, src, 1); err != nil {
			return err
		}
	}
	for src := range dead {
		mpi.Irecv(c, make([]byte, n), src, 1)
	}
	die()
	return nil
}

// lossStream: whoever finds the connection broken while it sends learns that the dead rank is lost, and not
// that it left.
func lossStream(ctx context.Context, c *mpi.Comm, die func()) error {
	dead, lives, err := lastDies(ctx, c, die)
	if !lives {
		return err
	}
	buf := make([]byte, 64)
	for err == nil {
		err = mpi.Send(ctx, c, buf, dead, 1)
	}
	if strings.Contains(err.Error(), "has said goodbye") {
		return fmt.Errorf("a stream of sends to a rank that died ends with: %w", err)
	}
	return names("stream of sends", err, c, dead)
}

func lossLaterOperations(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		die()
		return nil
	}
	dead := c.Size() - 1
	if err := mourn(ctx, c, dead); err != nil {
		return err
	}
	buf := make([]byte, 100)
	return errors.Join(
		names("send", mpi.Send(ctx, c, buf, dead, 1), c, dead),
		names("large send", mpi.Send(ctx, c, make([]byte, 1<<20), dead, 1), c, dead),
		names("isend", wait(ctx, mpi.Isend(c, buf, dead, 1)), c, dead),
		names("receive", recvOnly(ctx, c, buf, dead, 1), c, dead),
		names("irecv", wait(ctx, mpi.Irecv(c, buf, dead, mpi.AnyTag)), c, dead),
	)
}

// lossSentBefore: what the dead rank had sent, small, can still be received.
func lossSentBefore(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		for i := range 20 {
			if err := mpi.Send(ctx, c, filled(uint64(i), 200), 0, i); err != nil {
				return err
			}
		}
		// Only after the other has it all: a real network may lose what was
		// on its way.
		if err := expect(ctx, c, 0, 50, 50, 8); err != nil {
			return err
		}
		die()
		return nil
	}
	if _, err := c.Probe(ctx, 1, 19); err != nil {
		return err
	}
	if err := mpi.Send(ctx, c, filled(50, 8), 1, 50); err != nil {
		return err
	}
	if err := mourn(ctx, c, 1); err != nil {
		return err
	}
	for i := range 20 {
		if err := expect(ctx, c, 1, i, uint64(i), 200); err != nil {
			return fmt.Errorf("message %d of the dead rank: %w", i, err)
		}
	}
	return nil
}

// lossAnySource: receives from any rank fail until the loss is acknowledged.
func lossAnySource(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		die()
		return nil
	}
	dead := c.Size() - 1
	if err := names("pending receive from any rank", recvOnly(ctx, c, make([]byte, 1), mpi.AnySource, 1), c, dead); err != nil {
		return err
	}
	if err := names("receive from any rank", recvOnly(ctx, c, make([]byte, 1), mpi.AnySource, 1), c, dead); err != nil {
		return err
	}
	if acked := c.AckLost(); !slices.Equal(acked, []int{dead}) {
		return fmt.Errorf("acknowledged %v, want [%d]", acked, dead)
	}
	living := c.Size() - 1
	right, left := (c.Rank()+1)%living, (c.Rank()+living-1)%living
	r := mpi.Isend(c, []int{c.Rank()}, right, 2)
	got := []int{-1}
	if s, err := mpi.Recv(ctx, c, got, mpi.AnySource, 2); err != nil || s.Source != left || got[0] != left {
		return fmt.Errorf("acknowledged: got %d from %d, want %d, %w", got[0], s.Source, left, err)
	}
	if err := wait(ctx, r); err != nil {
		return err
	}
	// One of the others may wait in a collective for a rank that waits for the lost one.
	return names("acknowledged: receive of a collective", recvOnly(ctx, c.Shadow(), make([]byte, 1), left, 3), c, dead)
}

func lossProbe(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		die()
		return nil
	}
	dead := c.Size() - 1
	_, err := c.Probe(ctx, dead, 1)
	if err := names("probe of the dead rank", err, c, dead); err != nil {
		return err
	}
	_, err = c.Probe(ctx, mpi.AnySource, 1)
	if err := names("probe of any rank", err, c, dead); err != nil {
		return err
	}
	_, _, err = mpi.RecvAlloc[byte](ctx, c, mpi.AnySource, 1)
	return names("receive of any length from any rank", err, c, dead)
}

// lossOthersGoOn: the traffic of the living is not disturbed, before or after.
func lossOthersGoOn(ctx context.Context, c *mpi.Comm, die func()) error {
	living := c.Size() - 1
	if last(c) {
		for i := range 20 {
			if err := expect(ctx, c, 0, 7, uint64(i), 3000); err != nil {
				return err
			}
		}
		die()
		return nil
	}
	right, left := (c.Rank()+1)%living, (c.Rank()+living-1)%living
	for i := range 200 {
		if c.Rank() == 0 && i < 20 {
			if err := mpi.Send(ctx, c, filled(uint64(i), 3000), living, 7); err != nil {
				return err
			}
		}
		n := []int{8, 3000, 60_000}[i%3]
		buf := make([]byte, n)
		if _, err := mpi.Sendrecv(ctx, c, filled(uint64(c.Rank()*1000+i), n), right, 1, buf, left, 1); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		if err := verify(buf, uint64(left*1000+i)); err != nil {
			return err
		}
	}
	return mourn(ctx, c, living)
}

// dieAfterAll dies when every other rank has sent its message of tag 5.
func dieAfterAll(ctx context.Context, c *mpi.Comm, die func()) error {
	for src := range c.Size() - 1 {
		if err := expect(ctx, c, src, 5, 5, 8); err != nil {
			return err
		}
	}
	die()
	return nil
}

// lossOtherCommunicators: a communicator without the dead rank knows of no loss.
func lossOtherCommunicators(ctx context.Context, c *mpi.Comm, die func()) error {
	color := 0
	if last(c) {
		color = 1
	}
	part, err := c.Split(ctx, color, c.Rank())
	if err != nil {
		return err
	}
	if last(c) {
		// Not before everybody has what the split made.
		return dieAfterAll(ctx, c, die)
	}
	if err := mpi.Send(ctx, c, filled(5, 8), c.Size()-1, 5); err != nil {
		return err
	}
	if err := mourn(ctx, c, c.Size()-1); err != nil {
		return err
	}
	if len(part.Lost()) > 0 {
		return fmt.Errorf("%v lost %v", part, part.Lost())
	}
	right := (part.Rank() + 1) % part.Size()
	r := mpi.Isend(part, []byte{1}, right, 1)
	if err := recvOnly(ctx, part, make([]byte, 1), mpi.AnySource, mpi.AnyTag); err != nil {
		return fmt.Errorf("any source on a communicator without the dead rank: %w", err)
	}
	if err := wait(ctx, r); err != nil {
		return err
	}
	// Collective operations there work as well.
	again, err := part.Dup(ctx)
	if err != nil {
		return err
	}
	return shift(ctx, again, 3, c.Rank(), func(left int) int { return left })
}

// lossSplit: a collective operation with the dead rank fails on every living one.
func lossSplit(ctx context.Context, c *mpi.Comm, die func()) error {
	if last(c) {
		die()
		return nil
	}
	_, err := c.Split(ctx, 0, 0)
	if err := wants("split with a dead rank", err, mpi.ErrPeerLost); err != nil {
		return err
	}
	_, err = c.Dup(ctx)
	return wants("dup with a dead rank", err, mpi.ErrPeerLost)
}
