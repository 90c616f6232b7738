package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Pipelines of several segments, the last of which is short, with every length of segments, the ends of the chain
// as roots, and operands whose order shows.
func TestPipelinesOfSeveralSegments(t *testing.T) {
	for _, forced := range []struct {
		force     map[plan.Kind]string
		longBytes int // of a segment, the longest
	}{
		{map[plan.Kind]string{plan.Bcast: "chain/16K", plan.Reduce: "chain/16K"}, 16 << 10},
		{map[plan.Kind]string{plan.Bcast: "chain/64K", plan.Scan: "chain/64K", plan.Exscan: "chain/64K"}, 64 << 10},
		{map[plan.Kind]string{plan.Bcast: "chain/256K", plan.Reduce: "chain/256K"}, 256 << 10},
	} {
		for _, size := range atMost(3, []int{2, 3, 5}) {
			together(t, size, func(ctx context.Context, c *mpi.Comm) error {
				if err := Configure(c, Config{Force: forced.force}); err != nil {
					return err
				}
				n := 2*forced.longBytes/8 + 17
				for i, root := range []int{0, size - 1} {
					if err := pipe(ctx, c, i, n, root, i == 1); err != nil {
						return fmt.Errorf("%v, root %d, %d elements: %w", forced.force, root, n, err)
					}
				}
				return nil
			})
		}
	}
}

// pipe runs the collectives that have pipelines, and compares with the oracle.
func pipe(ctx context.Context, c *mpi.Comm, seed, n, root int, inPlace bool) error {
	me, size := c.Rank(), c.Size()
	buffers := func() (send, recv []int64) {
		send = operand[int64](seed, me, n)
		if inPlace {
			return send, send
		}
		return send, make([]int64, n)
	}
	buf := make([]int64, n)
	if me == root {
		copy(buf, operand[int64](seed, root, n))
	}
	if err := Bcast(ctx, c, buf, root); err != nil {
		return err
	}
	if err := equal("bcast", buf, operand[int64](seed, root, n)); err != nil {
		return err
	}
	send, recv := buffers()
	if err := Reduce(ctx, c, send, recv, concat, root); err != nil {
		return err
	}
	if me == root {
		if err := equal("reduce", recv, oracle(seed, 0, size-1, n, concatOne)); err != nil {
			return err
		}
	}
	send, recv = buffers()
	if err := Scan(ctx, c, send, recv, concat); err != nil {
		return err
	}
	if err := equal("scan", recv, oracle(seed, 0, me, n, concatOne)); err != nil {
		return err
	}
	send, recv = buffers()
	if err := Exscan(ctx, c, send, recv, concat); err != nil || me == 0 {
		return err
	}
	return equal("exscan", recv, oracle(seed, 0, me-1, n, concatOne))
}
