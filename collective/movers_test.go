package collective

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// moveAll runs every collective that moves data once, with equal blocks of n
// elements and with uneven ones, and compares with what it promises.
func moveAll[T mpi.Elem](ctx context.Context, c *mpi.Comm, seed, n, root int, inPlace bool) error {
	if err := moveBlocks[T](ctx, c, seed, n, root, inPlace); err != nil {
		return err
	}
	return moveUneven[T](ctx, c, seed, n, root, inPlace)
}

func moveBlocks[T mpi.Elem](ctx context.Context, c *mpi.Comm, seed, n, root int, inPlace bool) error {
	me, size := c.Rank(), c.Size()
	var all []T
	for r := range size {
		all = append(all, operand[T](seed, r, n)...)
	}
	mine := operand[T](seed, me, n)

	buf := make([]T, n)
	if me == root {
		copy(buf, mine)
	}
	if err := Bcast(ctx, c, buf, root); err != nil {
		return err
	}
	if err := equal("bcast", buf, all[root*n:(root+1)*n]); err != nil {
		return err
	}

	send, recv := mine, make([]T, n*size)
	if inPlace {
		copy(recv[me*n:], mine)
		send = recv[me*n : (me+1)*n]
		if n == 0 || seed%2 == 0 {
			send = recv
		}
		if n == 0 {
			send = nil
		}
	}
	if err := Allgather(ctx, c, send, recv); err != nil {
		return err
	}
	if err := equal("allgather", recv, all); err != nil {
		return err
	}

	send, recv = mine, nil
	if me == root {
		recv = make([]T, n*size)
		if inPlace {
			copy(recv[me*n:], mine)
			send = recv[me*n : (me+1)*n]
		}
	}
	if err := Gather(ctx, c, send, recv, root); err != nil {
		return err
	}
	if me == root {
		if err := equal("gather", recv, all); err != nil {
			return err
		}
	}

	send, recv = nil, make([]T, n)
	if me == root {
		send = append([]T(nil), all...)
		if inPlace {
			recv = nil
		}
	}
	if err := Scatter(ctx, c, send, recv, root); err != nil {
		return err
	}
	if recv != nil {
		if err := equal("scatter", recv, all[me*n:(me+1)*n]); err != nil {
			return err
		}
	}

	// Block r of rank i's send is part r of a vector of its own.
	send = operand[T](seed, me, n*size)
	recv = make([]T, n*size)
	if inPlace {
		recv = send
	}
	if err := Alltoall(ctx, c, send, recv); err != nil {
		return err
	}
	for r := range size {
		if err := equal("alltoall", recv[r*n:(r+1)*n], operand[T](seed, r, n*size)[me*n:(me+1)*n]); err != nil {
			return err
		}
	}
	return nil
}

func moveUneven[T mpi.Elem](ctx context.Context, c *mpi.Comm, seed, n, root int, inPlace bool) error {
	me, size := c.Rank(), c.Size()
	counts := make([]int, size)
	total, at := 0, 0
	var all []T
	for r := range size {
		counts[r] = (r*3 + n + seed) % 5 * (r % 3) * (1 + n/16)
		if r == me {
			at = total
		}
		total += counts[r]
		all = append(all, operand[T](seed, r, counts[r])...)
	}
	n = counts[me]
	mine := operand[T](seed, me, n)

	send, recv := mine, make([]T, total)
	if inPlace {
		copy(recv[at:], mine)
		send = recv[at : at+n]
	}
	if err := Allgatherv(ctx, c, send, recv, counts); err != nil {
		return err
	}
	if err := equal("allgatherv", recv, all); err != nil {
		return err
	}
	send, recv = mine, nil
	if me == root {
		recv = make([]T, total)
	}
	if err := Gatherv(ctx, c, send, recv, counts, root); err != nil {
		return err
	}
	if me == root {
		if err := equal("gatherv", recv, all); err != nil {
			return err
		}
	}
	send, recv = nil, make([]T, n)
	if me == root {
		send = all
	}
	if err := Scatterv(ctx, c, send, recv, counts, root); err != nil {
		return err
	}
	if err := equal("scatterv", recv, mine); err != nil {
		return err
	}
	if me == root { // in place
		send = slices.Clone(all)
		recv = send
	} else {
		recv = make([]T, n)
	}
	if err := Scatterv(ctx, c, send, recv, counts, root); err != nil {
		return err
	}
	if me == root {
		if err := equal("send of scatterv", send, all); err != nil {
			return err
		}
	} else if err := equal("scatterv", recv, mine); err != nil {
		return err
	}
	recv = make([]T, n)
	send = operand[T](seed, me, total)
	if inPlace && n > 0 {
		recv = send[:n]
	}
	if err := ReduceScatter(ctx, c, send, recv, counts, Sum); err != nil {
		return err
	}
	if err := equal("reduce_scatter", recv, oracle(seed, 0, size-1, total, sumOf[T])[at:at+n]); err != nil {
		return err
	}

	// What goes from i to j is symmetric, so that it may be done in place.
	between := func(i, j int) int { return (i*j + i + j + seed) % 4 }
	var out []T
	exchange := make([]int, size)
	for r := range size {
		exchange[r] = between(me, r)
		out = append(out, operand[T](seed+r, me, exchange[r])...)
	}
	recv = make([]T, len(out))
	if inPlace {
		recv = out
	}
	if err := Alltoallv(ctx, c, out, exchange, recv, exchange); err != nil {
		return err
	}
	var want []T
	for r := range size {
		want = append(want, operand[T](seed+me, r, exchange[r])...)
	}
	return equal("alltoallv", recv, want)
}

func TestMoversEqualTheOracle(t *testing.T) {
	forced := []Config{{}}
	for _, k := range []plan.Kind{plan.Barrier, plan.Bcast, plan.Gather, plan.Allgather, plan.Scatter, plan.Alltoall, plan.ReduceScatter} {
		forced = append(forced, chosenPlans(k)[1:]...)
	}
	for _, size := range oracleSizes() {
		together(t, size, func(ctx context.Context, c *mpi.Comm) error {
			for i, f := range forced {
				if err := reconfigure(ctx, c, f); err != nil {
					return err
				}
				for root := range size {
					if i > 0 && (i+root+size)%5 != 0 {
						continue
					}
					n := []int{1, 3, 0, 300}[(i+root)%4]
					inPlace := (i+root+size)%2 == 0
					var err error
					switch (i + root) % 6 {
					case 0:
						err = moveAll[int32](ctx, c, i, n, root, inPlace)
					case 1:
						err = moveAll[float64](ctx, c, i, n, root, inPlace)
					case 2:
						err = moveAll[uint8](ctx, c, i, n, root, inPlace)
					case 3:
						err = moveAll[int16](ctx, c, i, n, root, inPlace)
					case 4:
						err = moveAll[complex64](ctx, c, i, n, root, inPlace)
					default:
						err = moveAll[complex128](ctx, c, i, n, root, inPlace)
					}
					if err != nil {
						return fmt.Errorf("%v, root %d, %d elements, in place %v: %w", f.Force, root, n, inPlace, err)
					}
				}
			}
			return nil
		})
	}
}
