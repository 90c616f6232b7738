package collective

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// arenaPlans are the ways to do a long collective in an arena.
var arenaPlans = []string{MemoryPlan, DirectPlan}

// inShared runs f on n ranks of this process that share an arena, and do all collectives in one of
// its ways where it fits.
func inShared(t testing.TB, way string, n int, o mpi.LocalOptions, f func(ctx context.Context, c *mpi.Comm) error) []error {
	return onProcessors(t, way, float64(n)/float64(runtime.NumCPU()), slices.Repeat([]int{-1}, n), o, f)
}

// onProcessors is inShared with ranks that believe to share processors.
func onProcessors(t testing.TB, way string, ranksPerCore float64, processors []int, o mpi.LocalOptions, f func(ctx context.Context, c *mpi.Comm) error) []error {
	n := len(processors)
	// Ranks of one process wait for each other without giving way to goroutines.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(n, runtime.GOMAXPROCS(0))))
	parts, pids := make([]*part, n), make([]int, n)
	for r := range parts {
		parts[r], pids[r] = new(part), os.Getpid()
	}
	return onRanks(t, n, o, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Force: forceWay(way)}); err != nil {
			return err
		}
		s := stateOf(c)
		a := newArena(s, parts, ranksPerCore, processors)
		a.allowReading(pids)
		s.arena.Store(a)
		return f(ctx, c)
	})
}

// orRevoke is a rank's part of a test whose failure ends those of the others, which would wait for the rank.
func orRevoke(f func(ctx context.Context, c *mpi.Comm) error) func(ctx context.Context, c *mpi.Comm) error {
	return func(ctx context.Context, c *mpi.Comm) error {
		err := f(ctx, c)
		if err != nil {
			c.Revoke()
		}
		return err
	}
}

// borders are lengths in bytes about which a collective changes its way: slots, boxes,
// pieces, and the ring of them.
func borders(ranks int) []int {
	return []int{slotBytes / ranks, slotBytes, boxBytes(ranks), ranks * boxBytes(ranks), pieceBytes, 2*lead*ranks*boxBytes(ranks) + 5000, pieces*pieceBytes + pieceBytes/2}
}

func TestArenaEqualsTheOracle(t *testing.T) {
	for _, way := range arenaPlans {
		t.Run(way, func(t *testing.T) { arenaEqualsTheOracle(t, way) })
	}
}

func arenaEqualsTheOracle(t *testing.T, way string) {
	inOrder := caseOf("concat", concat, concatOne)
	sizes := []int{2, 3, 4, 7} // what lies between differs in nothing
	if testing.Short() || way == DirectPlan {
		sizes = sizes[:3]
	}
	if need.RaceDetector { // arithmetic takes ten times as long under it
		sizes = map[string][]int{MemoryPlan: {3}, DirectPlan: {2}}[way]
	}
	for _, size := range sizes {
		for r, err := range inShared(t, way, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			seed := 0
			offs := []int{-1, 0, 1}
			for i, border := range append(borders(size), 1, 1000) {
				if need.RaceDetector && i%2 == 0 && border > slotBytes {
					continue
				}
				near := offs
				if size > 4 || need.RaceDetector { // one of them: the others take the same ways with fewer ranks, or without it
					near = offs[i%3 : i%3+1]
				}
				for _, less := range near {
					seed++
					root, inPlace := seed%size, seed/size%2 == 0
					if err := everySize(ctx, c, seed, border, less, root, inPlace); err != nil {
						return fmt.Errorf("%d B and %d elements, root %d, in place %v: %w", border, less, root, inPlace, err)
					}
					if border <= slotBytes {
						if err := inOrder.run(ctx, c, seed, border/8+1, root, inPlace); err != nil {
							return fmt.Errorf("concat of %d B: %w", border, err)
						}
					}
				}
			}
			// Every root of long vectors.
			for root := range size {
				for _, inPlace := range []bool{false, true} {
					if seed++; need.RaceDetector && inPlace {
						continue
					}
					if err := everySize(ctx, c, seed, pieceBytes, 1, root, inPlace); err != nil {
						return fmt.Errorf("root %d, in place %v: %w", root, inPlace, err)
					}
				}
			}
			return Barrier(ctx, c)
		}) {
			if err != nil {
				t.Errorf("%d ranks: rank %d: %v", size, r, err)
			}
		}
	}
}

// everySize runs all collectives on vectors of about n bytes, with elements of a size
// that the seed chooses.
func everySize(ctx context.Context, c *mpi.Comm, seed, n, less, root int, inPlace bool) error {
	switch seed % 5 {
	case 0:
		return moveAndReduce[uint8](ctx, c, seed, n+less, root, inPlace)
	case 1:
		return moveAndReduce[int16](ctx, c, seed, max(0, n/2+less), root, inPlace)
	case 2:
		return moveAndReduce[float32](ctx, c, seed, max(0, n/4+less), root, inPlace)
	case 3:
		return moveAndReduce[int64](ctx, c, seed, max(0, n/8+less), root, inPlace)
	}
	return widest(ctx, c, seed, max(0, n/16+less))
}

func moveAndReduce[T interface {
	mpi.Elem
	cmp.Ordered
}](ctx context.Context, c *mpi.Comm, seed, n, root int, inPlace bool) error {
	if err := moveAll[T](ctx, c, seed, n, root, inPlace); err != nil {
		return err
	}
	return reduceAll(ctx, c, seed, n, root, inPlace, Max, maxOf[T])
}

// widest is for elements of 16 bytes.
func widest(ctx context.Context, c *mpi.Comm, seed, n int) error {
	me, size := c.Rank(), c.Size()
	vector := func(rank, n int) []complex128 {
		return mpi.View[complex128](mpi.Bytes(operand[float64](seed, rank, 2*n)))
	}
	sum := vector(0, n)
	var all []complex128
	for r := range size {
		for i, x := range vector(r, n) {
			if all = append(all, x); r > 0 {
				sum[i] += x
			}
		}
	}
	recv := make([]complex128, n*size)
	if err := Allgather(ctx, c, vector(me, n), recv); err != nil {
		return err
	}
	if err := equal("allgather of complex128", recv, all); err != nil {
		return err
	}
	mine := vector(me, n)
	if err := Allreduce(ctx, c, mine, mine, Sum); err != nil {
		return err
	}
	if err := equal("allreduce of complex128", mine, sum); err != nil {
		return err
	}
	if err := Alltoall(ctx, c, vector(me, n*size), recv); err != nil {
		return err
	}
	for r := range size {
		if err := equal("alltoall of complex128", recv[r*n:(r+1)*n], vector(r, n*size)[me*n:(me+1)*n]); err != nil {
			return err
		}
	}
	return nil
}

// Several goroutines of each rank are in collectives at once, on vectors of any length.
func TestArenaServesOneAfterTheOther(t *testing.T) {
	for _, way := range arenaPlans {
		t.Run(way, func(t *testing.T) { arenaServesOneAfterTheOther(t, way) })
	}
}

func arenaServesOneAfterTheOther(t *testing.T, way string) {
	for r, err := range inShared(t, way, 3, mpi.LocalOptions{}, fourAtOnce(1, 5000, 3*pieceBytes)) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// fourAtOnce has four goroutines of a rank in the same collectives, on vectors of these lengths.
func fourAtOnce(lengths ...int) func(ctx context.Context, c *mpi.Comm) error {
	return func(ctx context.Context, c *mpi.Comm) error {
		errs := make([]error, 4)
		for round, n := range lengths {
			want := oracle(round, 0, c.Size()-1, n, sumOf[int32])
			var all sync.WaitGroup
			for g := range errs {
				all.Go(func() {
					for range 20 {
						got := make([]int32, n)
						if errs[g] = Allreduce(ctx, c, operand[int32](round, c.Rank(), n), got, Sum); errs[g] != nil {
							return
						}
						if errs[g] = equal("allreduce", got, want); errs[g] != nil {
							return
						}
					}
				})
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
		return nil
	}
}

// aloneInArena has rank 0 do f in an arena of two, to which rank 1 does not come.
func aloneInArena(t *testing.T, f func(ctx context.Context, c *mpi.Comm) error) {
	t.Helper()
	gone := make(chan struct{})
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		if c.Rank() == 1 {
			<-gone
			return nil
		}
		defer close(gone)
		return f(ctx, c)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// ticketsOf is how many meetings of this rank have got a turn in the arena, or wait for it.
func ticketsOf(c *mpi.Comm) uint64 {
	s := stateOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arena.Load().tickets
}

// A call of which the context ends while it waits for its turn ends then, and with it what it waits for.
func TestArenaTurnEndsWithTheContext(t *testing.T) {
	aloneInArena(t, func(ctx context.Context, c *mpi.Comm) error {
		first := make(chan error)
		go func() { first <- Barrier(ctx, c) }()
		lookUntil(ctx, func() bool { return ticketsOf(c) > 0 })
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if err := within(Barrier(short, c), context.DeadlineExceeded); err != nil {
			return err
		}
		return within(<-first, mpi.ErrCancelled)
	})
}

// An operator is given operands that are the same or apart, also where a reduce-scatter in place puts the
// result a little before its own block: here it would spoil that, going backwards.
func TestArenaOperandsAreApart(t *testing.T) {
	sum := OpFunc("sum from the end", func(dst, a, b []int64) {
		for i := range slices.Backward(dst) {
			dst[i] = a[i] + b[i]
		}
	})
	for _, way := range arenaPlans {
		for size := 2; size <= 3; size++ {
			counts := []int{10, 3000, 20}[:size]
			total := 3010 + (size-2)*20
			for r, err := range inShared(t, way, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
				me := c.Rank()
				v, at := operand[int64](1, me, total), 0
				for _, n := range counts[:me] {
					at += n
				}
				if err := ReduceScatter(ctx, c, v, v, counts, sum); err != nil {
					return err
				}
				return equal("reduce_scatter", v[:counts[me]], oracle(1, 0, size-1, total, sumOf[int64])[at:at+counts[me]])
			}) {
				if err != nil {
					t.Errorf("%s, %d ranks: rank %d: %v", way, size, r, err)
				}
			}
		}
	}
}

// A rank that gets nothing of a reduce-scatter waits for nobody, and does not look at slots that may hold what was
// shown long ago: here vectors that would be places far outside the memory.
func TestArenaReduceScatterOfNothing(t *testing.T) {
	for _, way := range arenaPlans {
		for r, err := range inShared(t, way, 3, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			me := c.Rank()
			full, all := []int64{math.MaxInt64, -1}, make([]int64, 6)
			for turn := range 3 * slots {
				counts := []int{100, 0, 3}
				total := 103
				got := make([]int64, counts[me])
				if err := ReduceScatter(ctx, c, operand[int64](turn, me, total), got, counts, Sum); err != nil {
					return err
				}
				at := []int{0, 100, 100}[me]
				if err := equal("reduce_scatter", got, oracle(turn, 0, 2, total, sumOf[int64])[at:at+counts[me]]); err != nil {
					return err
				}
				for range 2 { // so that each slot has both in turn
					if err := Allgather(ctx, c, full, all); err != nil {
						return err
					}
				}
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("%s: rank %d: %v", way, r, err)
			}
		}
	}
}

// What a rank shows in one turn lies so far from what it shows in the next that nobody who reads the one fetches lines of the other.
func TestTurnsLieApart(t *testing.T) {
	if gap := (slot(1) - slot(0) - slotWords) * 8; gap < 1<<10 {
		t.Errorf("%d bytes between slots", gap)
	}
	const n, turns = 300, 200
	for r, err := range inShared(t, MemoryPlan, 2, mpi.LocalOptions{}, orRevoke(func(ctx context.Context, c *mpi.Comm) error {
		send, recv := make([]int32, n), make([]int32, n)
		last := -1
		for i := range turns {
			if err := Allreduce(ctx, c, send, recv, Sum); err != nil {
				return err
			}
			a := stateOf(c).arena.Load()
			at := int(a.parts[a.me][slot(a.turn)+slotHead])
			if last >= 0 && at < last+4*n+memcopy.ReadAheadBytes && at != 0 { // which is where it turns back
				return fmt.Errorf("call %d: %d bytes at %d of the store, and at %d before", i, 4*n, at, last)
			}
			last = at
		}
		return nil
	})) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Nobody leaves a barrier before the last has come, also when the others sleep by then. Behind a call in which all waited
// for one rank, that rank is the first to leave.
func TestArenaBarrierWaits(t *testing.T) {
	v := make([][]int32, 3)
	for r := range v {
		v[r] = make([]int32, 3)
	}
	for name, k := range map[string]struct {
		before func(ctx context.Context, c *mpi.Comm, i int) error
		first  func(i int) int
	}{
		"no call":     {func(context.Context, *mpi.Comm, int) error { return nil }, func(int) int { return nobody }},
		"a broadcast": {func(ctx context.Context, c *mpi.Comm, i int) error { return Bcast(ctx, c, v[c.Rank()], i%3) }, func(i int) int { return i % 3 }},
		"a scatter": {func(ctx context.Context, c *mpi.Comm, i int) error {
			return Scatter(ctx, c, v[c.Rank()], make([]int32, 1), i/2%3)
		}, func(i int) int { return i / 2 % 3 }},
		"a scan": {func(ctx context.Context, c *mpi.Comm, i int) error {
			return Scan(ctx, c, v[c.Rank()], make([]int32, 3), Sum)
		}, func(int) int { return 0 }},
		"a reduction": {func(ctx context.Context, c *mpi.Comm, i int) error {
			return Reduce(ctx, c, v[c.Rank()], make([]int32, 3), Sum, i%3)
		}, func(int) int { return nobody }},
	} {
		var come atomic.Int64
		for r, err := range inShared(t, MemoryPlan, 3, mpi.LocalOptions{}, orRevoke(func(ctx context.Context, c *mpi.Comm) error {
			for i := 1; i <= 20; i++ {
				if err := k.before(ctx, c, i); err != nil {
					return err
				}
				if c.Rank() == i%3 {
					ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
					<-ctx.Done()
					cancel()
				}
				come.Add(1)
				if err := Barrier(ctx, c); err != nil {
					return err
				}
				if come.Load() < int64(3*i) {
					return errors.New("left before all had come")
				}
				a := stateOf(c).arena.Load()
				left := func(r int) bool { return atomic.LoadUint64(&a.parts[r][released]) >= a.turn }
				if first := k.first(i); first != nobody && !left(first) {
					return fmt.Errorf("barrier %d: before rank %d", i, first)
				} else if first != a.me && left(a.me) {
					return fmt.Errorf("barrier %d: the first to leave", i)
				}
			}
			return nil
		})) {
			if err != nil {
				t.Errorf("behind %s: rank %d: %v", name, r, err)
			}
		}
	}
}

// In a crowd a rank leaves a barrier after those of its processor that gave it something in the call before and got nothing,
// unless it gave something to others of them.
func TestArenaBarrierInOrder(t *testing.T) {
	processors := []int{0, 1, 0, 1, 1}
	for name, k := range map[string]struct {
		before func(ctx context.Context, c *mpi.Comm, v, result []int32) error
		waits  map[int][]int // for whom a rank does
	}{
		"scan": {func(ctx context.Context, c *mpi.Comm, v, result []int32) error {
			return Scan(ctx, c, v, result, Sum)
		}, map[int][]int{1: {0}, 2: {0}, 3: {0}, 4: {0, 1, 3}}},
		"broadcast": {func(ctx context.Context, c *mpi.Comm, v, result []int32) error {
			return Bcast(ctx, c, v, 3)
		}, map[int][]int{0: {3}, 1: {3}, 2: {3}, 4: {3}}},
		"reduction": {func(ctx context.Context, c *mpi.Comm, v, result []int32) error {
			return Reduce(ctx, c, v, result, Sum, 1)
		}, map[int][]int{1: {3, 4}}},
		"gather": {func(ctx context.Context, c *mpi.Comm, v, result []int32) error {
			return Gather(ctx, c, v[:1], result, 2)
		}, map[int][]int{2: {0}}},
		"reduction of few": {func(ctx context.Context, c *mpi.Comm, v, result []int32) error {
			counts := []int{1, 0, 0, 1, 0}
			return ReduceScatter(ctx, c, v[:2], result[:counts[c.Rank()]], counts, Sum)
		}, map[int][]int{0: {2}, 3: {1, 4}}},
		"allreduce": {func(ctx context.Context, c *mpi.Comm, v, result []int32) error {
			return Allreduce(ctx, c, v, result, Sum)
		}, nil},
	} {
		var awaited []int
		for _, others := range k.waits {
			awaited = append(awaited, others...)
		}
		for r, err := range onProcessors(t, MemoryPlan, 2.5, processors, mpi.LocalOptions{}, orRevoke(func(ctx context.Context, c *mpi.Comm) error {
			v, result := make([]int32, len(processors)), make([]int32, len(processors))
			for i := range 30 {
				if err := k.before(ctx, c, v, result); err != nil {
					return err
				}
				if c.Rank() == i%len(processors) {
					<-time.After(time.Millisecond)
				}
				if err := Barrier(ctx, c); err != nil {
					return err
				}
				a := stateOf(c).arena.Load()
				left := func(r int) bool { return atomic.LoadUint64(&a.parts[r][released]) >= a.turn }
				for _, r := range k.waits[c.Rank()] {
					if !left(r) {
						return fmt.Errorf("barrier %d: left before rank %d", i, r)
					}
				}
				for r := range processors {
					if left(r) && !slices.Contains(awaited, r) {
						return fmt.Errorf("barrier %d: rank %d thinks that it is waited for", i, r)
					}
				}
			}
			return nil
		})) {
			if err != nil {
				t.Errorf("behind a %s: rank %d: %v", name, r, err)
			}
		}
	}
}

// Ranks that need nothing from the others run ahead of them, and nothing is overwritten
// that somebody has still to read.
func TestArenaRunsAhead(t *testing.T) {
	for r, err := range inShared(t, MemoryPlan, 4, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		rng := rand.New(rand.NewPCG(7, uint64(c.Rank())))
		v, sum := make([]int64, 3), make([]int64, 3)
		for i := range int64(600) {
			root := int(i/100) % c.Size()
			for j := range v {
				v[j] = i * int64(j+1)
			}
			if rng.IntN(50) == 0 {
				runtime.Gosched()
			}
			if c.Rank() != root {
				clear(v)
			}
			if err := Bcast(ctx, c, v, root); err != nil {
				return err
			}
			if v[2] != 3*i {
				return fmt.Errorf("bcast %d brought %v", i, v)
			}
			if err := Reduce(ctx, c, v, sum, Sum, root); err != nil {
				return err
			}
			if c.Rank() == root && sum[1] != 8*i {
				return fmt.Errorf("reduce %d made %v", i, sum)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// BenchmarkArena is a collective whose other rank has always come already: what
// it costs besides waiting.
func BenchmarkArena(b *testing.B) {
	for _, kind := range []plan.Kind{plan.Barrier, plan.Allreduce, plan.Bcast, plan.Allgather, plan.Alltoall} {
		b.Run(kind.String(), func(b *testing.B) {
			var mu sync.Mutex
			mu.Lock()
			for _, err := range inShared(b, MemoryPlan, 2, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
				if c.Rank() == 1 {
					mu.Lock() // until rank 0 is done
					return nil
				}
				defer mu.Unlock()
				v, both := []float32{1, 2}, make([]float32, 4)
				s := stateOf(c)
				a := s.arena.Load()
				ahead := func(called signature) {
					for turn := range uint64(slots) {
						at := slot(turn)
						copy(a.parts[1].bytes(at+1, signatureBytes), called[:])
						a.parts[1][at] = 1 << 60
					}
				}
				do := func(i int) error {
					at := slot(uint64(i))
					a.parts[1][at+2] = a.parts[1][at+2]<<16>>16 | s.trail>>trailShift<<48
					a.parts[1][at+callAt] = uint64(i) << numberShift
					switch kind {
					case plan.Barrier:
						return Barrier(ctx, c)
					case plan.Allreduce:
						return Allreduce(ctx, c, v, v, Sum)
					case plan.Allgather:
						return Allgather(ctx, c, v, both)
					case plan.Alltoall:
						return Alltoall(ctx, c, both, both)
					}
					return Bcast(ctx, c, v, 0)
				}
				e := key{kind: kind, typ: typeOf[float32](), count: len(v), here: true}
				if kind == plan.Barrier {
					e.typ, e.count = elemType{size: 1}, 0
				}
				ahead(e.sign(memoryCode))
				b.ResetTimer()
				for i := range b.N {
					if err := do(i + 1); err != nil {
						return err
					}
				}
				return nil
			}) {
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
}

// A rank waits for those that need its processor before those that run elsewhere.
func TestOrderOfWaiting(t *testing.T) {
	for _, c := range []struct {
		name       string
		processors []int
		perCore    float64
		others     []int
		elsewhere  []int
	}{
		{"alone", []int{0, 1, 2, 3}, 1, []int{0, 2, 3}, nil},
		{"in a crowd", []int{0, 1, 0, 1}, 2, []int{3, 0, 2}, []int{0, 2}},
		{"alone in a crowd", []int{0, 1, 0}, 1.5, []int{0, 2}, []int{0, 2}},
		{"not known", []int{-1, -1, -1}, 2, []int{0, 2}, nil},
		{"of others not known", []int{-1, 1, 0, -1, 1}, 2, []int{0, 3, 4, 2}, []int{2}},
	} {
		a := newArena(&state{rank: 1}, make([]*part, len(c.processors)), c.perCore, c.processors)
		var elsewhere []int
		for r := range c.processors {
			if a.elsewhere.has(r) {
				elsewhere = append(elsewhere, r)
			}
		}
		if !slices.Equal(a.others, c.others) || !slices.Equal(elsewhere, c.elsewhere) {
			t.Errorf("%s: waits for %v, of which %v run elsewhere; want %v and %v", c.name, a.others, elsewhere, c.others, c.elsewhere)
		}
	}
}
