package collective

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// seedVariable has a soak repeat what a seed gave.
const seedVariable = "FISTERRA_SEED"

// soakSeed is the seed from the environment, else one of chance. It is printed.
func soakSeed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if v := os.Getenv(seedVariable); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("%s=%q is no seed as it was printed: %v", seedVariable, v, err)
		}
	}
	t.Logf("seed %d: %s=%[1]d repeats it", seed, seedVariable)
	return seed
}

// soakTime is how long a soak lasts unless the environment says otherwise.
func soakTime(t *testing.T, otherwise time.Duration) time.Duration {
	v := os.Getenv(mpitest.SoakVariable)
	if v == "" {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("%s=%q is not a duration such as 10m: %v", mpitest.SoakVariable, v, err)
	}
	return d
}

// pending is a nonblocking collective under way with the check of its result.
type pending struct {
	request Request
	check   func() error
}

// Random overlapping nonblocking collectives of all kinds on several communicators, waited
// for in an order of every rank's own.
func TestSoakOfOverlappingCollectives(t *testing.T) {
	seed := soakSeed(t)
	length := soakTime(t, 3*time.Second) / 2
	if testing.Short() {
		length = min(length, 500*time.Millisecond)
	}
	// World after world, since each has its deadline; the seeds count up.
	worlds := func(world func(t *testing.T, seed uint64, length time.Duration)) func(*testing.T) {
		return func(t *testing.T) {
			n := uint64(0)
			for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); n++ {
				world(t, seed+n, min(length, 20*time.Second))
			}
			t.Logf("%d worlds, of seeds from %d on", n, seed)
		}
	}
	t.Run("sim", worlds(func(t *testing.T, seed uint64, length time.Duration) {
		together(t, 5, func(ctx context.Context, c *mpi.Comm) error { return overlap(ctx, c, seed, length) })
	}))
	t.Run("shm", worlds(func(t *testing.T, seed uint64, length time.Duration) {
		overSharedMemory(t, 3, func(ctx context.Context, c *mpi.Comm) error { return overlap(ctx, c, seed, length) })
	}))
}

// overlap is the work of a rank until some time has passed.
func overlap(ctx context.Context, c *mpi.Comm, seed uint64, length time.Duration) error {
	dup, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	half, err := c.Split(ctx, c.Rank()%2, 0)
	if err != nil {
		return err
	}
	// What is started follows from the seed, alike on all ranks; the order
	// of waiting does not.
	common, own := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, uint64(c.Rank())+1))
	for end := time.Now().Add(length); ; {
		var under []pending
		for range 1 + common.IntN(8) {
			on := []*mpi.Comm{c, dup, half}[common.IntN(3)]
			under = append(under, startSome(on, common.IntN(kindsOfStart), common.Uint32()))
		}
		own.Shuffle(len(under), func(i, j int) { under[i], under[j] = under[j], under[i] })
		for _, p := range under {
			if err := p.end(ctx, own.IntN(3) == 0); err != nil {
				return err
			}
		}
		stop := []int32{0}
		if time.Now().After(end) {
			stop[0] = 1
		}
		if err := Allreduce(ctx, c, stop, stop, Max); err != nil || stop[0] == 1 {
			return err
		}
	}
}

// end waits for the collective, or tests it until it has ended, and checks the result.
func (p *pending) end(ctx context.Context, tests bool) error {
	if !tests {
		if err := p.request.Wait(ctx); err != nil {
			return err
		}
		return p.check()
	}
	for done := false; !done; runtime.Gosched() {
		var err error
		if done, err = p.request.Test(); err != nil {
			return err
		}
		if !done && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return p.check()
}

// kindsOfStart is how many collectives startSome knows: all that are nonblocking.
const kindsOfStart = 16

// startSome starts a nonblocking collective, with a root and a length that the other number says.
func startSome(c *mpi.Comm, kind int, what uint32) pending {
	size, me := c.Size(), c.Rank()
	n := []int{1, 100, 3000, 70_000}[what>>8%4]
	if n > 3000 && kind > 6 {
		n = 20_000 // for each rank
	}
	root := int(what >> 16 % uint32(size))
	seed := int(what >> 20 % 1000)
	counts, starts := make([]int, size), make([]int, size+1)
	for r := range counts {
		counts[r] = n * ((r + seed) % 3) / 2 // some have none
		starts[r+1] = starts[r] + counts[r]
	}
	mine, total := counts[me], starts[size]
	vector := func(rank, n int) []int64 { return operand[int64](seed, rank, n) }
	send, recv := vector(me, n), make([]int64, n)
	sum := func(last int) func() error {
		return func() error { return equal("reduction", recv, oracle(seed, 0, last, n, sumOf[int64])) }
	}
	atRoot := func(check func() error) func() error {
		if me == root {
			return check
		}
		return func() error { return nil }
	}
	// blocks of each rank, one after the other
	blocks := func(all []int64, n func(r int) int) func() error {
		return func() error {
			var want []int64
			for r := range size {
				want = append(want, vector(r, n(r))...)
			}
			return equal("blocks", all, want)
		}
	}
	even, uneven := func(int) int { return n }, func(r int) int { return counts[r] }
	switch kind {
	case 0:
		return pending{Ibarrier(c), func() error { return nil }}
	case 1:
		if me == root {
			copy(recv, send)
		}
		return pending{Ibcast(c, recv, root), func() error { return equal("bcast", recv, vector(root, n)) }}
	case 2:
		return pending{Iallreduce(c, send, recv, Sum), sum(size - 1)}
	case 3:
		return pending{Ireduce(c, send, recv, Sum, root), atRoot(sum(size - 1))}
	case 4:
		return pending{Iscan(c, send, recv, Sum), sum(me)}
	case 5:
		if me == 0 {
			return pending{Iexscan(c, send, recv, Sum), func() error { return equal("recv of rank 0", recv, make([]int64, n)) }}
		}
		return pending{Iexscan(c, send, recv, Sum), sum(me - 1)}
	case 6:
		all := make([]int64, n*size)
		return pending{Iallgather(c, send, all), blocks(all, even)}
	case 7:
		all := make([]int64, n*size)
		return pending{Igather(c, send, all, root), atRoot(blocks(all, even))}
	case 8:
		return pending{Iscatter(c, vector(root, n*size), recv, root), func() error {
			return equal("scatter", recv, vector(root, n*size)[me*n:(me+1)*n])
		}}
	case 9:
		return pending{IreduceScatterBlock(c, vector(me, n*size), recv, Sum), func() error {
			return equal("reduce_scatter", recv, oracle(seed, 0, size-1, n*size, sumOf[int64])[me*n:(me+1)*n])
		}}
	case 10:
		all := make([]int64, n*size)
		return pending{Ialltoall(c, vector(me, n*size), all), func() error {
			for r := range size {
				if err := equal("alltoall", all[r*n:(r+1)*n], vector(r, n*size)[me*n:(me+1)*n]); err != nil {
					return err
				}
			}
			return nil
		}}
	case 11:
		all := make([]int64, total)
		return pending{Iallgatherv(c, vector(me, mine), all, counts), blocks(all, uneven)}
	case 12:
		all := make([]int64, total)
		return pending{Igatherv(c, vector(me, mine), all, counts, root), atRoot(blocks(all, uneven))}
	case 13:
		recv = make([]int64, mine)
		return pending{Iscatterv(c, vector(root, total), recv, counts, root), func() error {
			return equal("scatterv", recv, vector(root, total)[starts[me]:starts[me+1]])
		}}
	case 14:
		recv = make([]int64, mine)
		return pending{IreduceScatter(c, vector(me, total), recv, counts, Sum), func() error {
			return equal("reduce_scatter with counts", recv, oracle(seed, 0, size-1, total, sumOf[int64])[starts[me]:starts[me+1]])
		}}
	case 15:
		// Rank i sends counts[j] elements of its own to rank j.
		in := make([]int, size)
		for r := range in {
			in[r] = mine
		}
		all := make([]int64, mine*size)
		return pending{Ialltoallv(c, vector(me, total), counts, all, in), func() error {
			for r := range size {
				if err := equal("alltoallv", all[r*mine:(r+1)*mine], vector(r, total)[starts[me]:starts[me+1]]); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	panic(fmt.Sprintf("there is no collective %d", kind))
}

// Every nonblocking collective over every transport, one after the other and all at once.
func TestEveryNonblockingCollective(t *testing.T) {
	every := func(ctx context.Context, c *mpi.Comm) error {
		for i := range uint32(12) {
			if need.RaceDetector && i%3 != 0 { // of these four each has another length
				continue
			}
			what := i%4<<8 | i<<16 | i*77<<20
			var under []pending
			for kind := range kindsOfStart {
				p := startSome(c, kind, what)
				if i%2 == 0 {
					under = append(under, p)
				} else if err := p.end(ctx, kind%2 == 0); err != nil {
					return fmt.Errorf("collective %d, %#x: %w", kind, what, err)
				}
			}
			for kind, p := range under {
				if err := p.end(ctx, false); err != nil {
					return fmt.Errorf("collective %d of all at once, %#x: %w", kind, what, err)
				}
			}
		}
		return nil
	}
	for _, n := range atMost(3, []int{1, 2, 3, 4}) {
		t.Run(fmt.Sprintf("sim/%d", n), func(t *testing.T) { together(t, n, every) })
		t.Run(fmt.Sprintf("shm/%d", n), func(t *testing.T) { overSharedMemory(t, n, every) })
		t.Run(fmt.Sprintf("tcp/%d", n), func(t *testing.T) { overTCP(t, n, every) })
	}
}
