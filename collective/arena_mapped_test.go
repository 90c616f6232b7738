package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// mappedCase is a collective on n elements of each rank, or for each.
type mappedCase struct {
	name string
	call func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, root int) error
}

func mappedCases() []mappedCase {
	return []mappedCase{
		{"bcast", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, root int) error {
			if c.Rank() == root {
				copy(recv[:n], send)
			}
			return Bcast(ctx, c, recv[:n], root)
		}},
		{"reduce", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, root int) error {
			return Reduce(ctx, c, send[:n], recv[:n], Sum, root)
		}},
		{"allreduce", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, _ int) error {
			return Allreduce(ctx, c, send[:n], recv[:n], Sum)
		}},
		{"allreduce in place", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, _ int) error {
			copy(recv[:n], send)
			return Allreduce(ctx, c, recv[:n], recv[:n], Sum)
		}},
		{"reduce_scatter", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, _ int) error {
			return ReduceScatterBlock(ctx, c, send[:n*c.Size()], recv[:n], Sum)
		}},
		{"allgather", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, _ int) error {
			return Allgather(ctx, c, send[:n], recv[:n*c.Size()])
		}},
		{"alltoall", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, _ int) error {
			return Alltoall(ctx, c, send[:n*c.Size()], recv[:n*c.Size()])
		}},
		{"alltoall in place", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, _ int) error {
			copy(recv[:n*c.Size()], send)
			return Alltoall(ctx, c, recv[:n*c.Size()], recv[:n*c.Size()])
		}},
		{"gather", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, root int) error {
			return Gather(ctx, c, send[:n], recv[:n*c.Size()], root)
		}},
		{"scatter", func(ctx context.Context, c *mpi.Comm, send, recv []int64, n, root int) error {
			return Scatter(ctx, c, send[:n*c.Size()], recv[:n], root)
		}},
	}
}

// mappedRun does collectives on two communicators of the same ranks: on one in the arena, on the other by
// messages, and compares.
type mappedRun struct {
	c, messages *mpi.Comm
	seed        int
}

func (m *mappedRun) all(ctx context.Context, alloc func(n int) ([]int64, error)) error {
	const longest = 50_000
	size := m.c.Size()
	send, err := alloc(longest * size)
	if err != nil {
		return err
	}
	recv, err := alloc(longest * size)
	if err != nil {
		return err
	}
	want := make([]int64, len(recv))
	for _, k := range mappedCases() {
		m.seed++
		n := []int{2000, 9001, longest, shortElements, 1000}[m.seed%5]
		for i := range send {
			send[i] = int64(m.seed*1000 + i*size + m.c.Rank())
		}
		clear(recv)
		clear(want)
		if err := k.call(ctx, m.c, send, recv, n, m.seed%size); err != nil {
			return fmt.Errorf("%s of %d: %w", k.name, n, err)
		}
		if err := k.call(ctx, m.messages, send, want, n, m.seed%size); err != nil {
			return fmt.Errorf("%s of %d by messages: %w", k.name, n, err)
		}
		if err := equal(fmt.Sprintf("%s of %d", k.name, n), recv, want); err != nil {
			return err
		}
	}
	return nil
}

// Long collectives are direct, from the same one on at all ranks, while all have their buffers from
// mpi.Alloc, and right in any case.
func TestArenaMapped(t *testing.T) {
	rounds := 2 * keptSlabs
	if need.RaceDetector {
		rounds = 2
	}
	for _, size := range atMost(2, []int{2, 3}) {
		overSharedMemory(t, size, func(ctx context.Context, c *mpi.Comm) error { return arenaMapped(ctx, c, rounds) })
	}
}

// shortElements fit into a slot, but not behind its head.
const shortElements = 500

// alike are so many collectives on vectors of n elements from alloc that the votes about them count.
func alike(ctx context.Context, c *mpi.Comm, alloc func(n int) ([]int64, error), n int) error {
	send, err := alloc(n)
	if err != nil {
		return err
	}
	recv, err := alloc(n * c.Size())
	if err != nil {
		return err
	}
	want := make([]int64, len(recv))
	for i := range 2 * slots {
		for j := range want {
			want[j] = int64(i*len(want) + j)
		}
		copy(send, want[c.Rank()*n:])
		if err := Allgather(ctx, c, send, recv); err != nil {
			return err
		}
		if err := equal(fmt.Sprintf("allgather %d of %d", i, n), recv, want); err != nil {
			return err
		}
	}
	return nil
}

// arenaMapped does rounds of collectives of which the buffers are mapped, or are not, on some rank.
func arenaMapped(ctx context.Context, c *mpi.Comm, rounds int) error {
	size := c.Size()
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(Configure(c, Config{Model: mappedModel()}), Configure(d, Config{Force: forceWay("messages")})); err != nil {
		return err
	}
	for range arenaAfter + 1 {
		if err := Barrier(ctx, c); err != nil {
			return err
		}
	}
	a := stateOf(c).arena.Load()
	if a == nil || a.pids == nil {
		return errors.New("the ranks do not share memory, or cannot read each other's")
	}
	run := &mappedRun{c: c, messages: d}
	heap := func(n int) ([]int64, error) { return make([]int64, n), nil }
	mine, his := (c.Rank()+1)%size, c.Rank() == size-1
	var slabs [][]int64
	slab := func(n int) ([]int64, error) {
		b, err := mpi.Alloc[int64](c, n)
		slabs = append(slabs, b)
		return b, err
	}
	free := func() error {
		err := Barrier(ctx, c)
		for _, b := range slabs {
			err = errors.Join(err, mpi.Free(c, b))
		}
		slabs = nil
		return err
	}
	for _, phase := range []struct {
		name   string
		alloc  func(n int) ([]int64, error)
		mapped bool
	}{
		{"heap", heap, false},
		{"mapped", slab, true},
		{"one rank's heap", map[bool]func(int) ([]int64, error){true: heap, false: slab}[his], false},
		{"mapped again", slab, true},
	} {
		for round := range rounds {
			if err := run.all(ctx, phase.alloc); err != nil {
				return fmt.Errorf("%s, round %d: %w", phase.name, round, err)
			}
			if err := free(); err != nil {
				return err
			}
			if n := len(a.views[mine]); n > keptSlabs {
				return fmt.Errorf("%s: %d pieces of a rank's memory are mapped", phase.name, n)
			}
		}
		// The last one of each length before the votes that count now may have been in place, and copied.
		for _, n := range []int{slotBytes, shortElements} {
			if err := alike(ctx, c, phase.alloc, n); err != nil {
				return err
			}
		}
		if a.allMapped != [lengths]bool{phase.mapped, phase.mapped} {
			return fmt.Errorf("%s: mapped is %v", phase.name, a.allMapped)
		}
		if phase.mapped && !slices.ContainsFunc(a.views[mine], func(v view) bool { return v.mapping != nil }) {
			return fmt.Errorf("%s: nothing is mapped", phase.name)
		}
		if err := free(); err != nil {
			return err
		}
	}
	// Programs that do nothing but reduce in place have their vectors mapped, too.
	for _, alloc := range []func(n int) ([]int64, error){heap, slab} {
		v, err := alloc(slotBytes)
		if err != nil {
			return err
		}
		for range 2 * slots {
			if err := Allreduce(ctx, c, v, v, Max); err != nil {
				return err
			}
		}
	}
	if !a.allMapped[long] {
		return errors.New("allreduces in place are not direct")
	}
	// Their short ones may be from the heap all the same.
	if err := alike(ctx, c, heap, shortElements); err != nil {
		return err
	}
	if a.allMapped != [lengths]bool{long: true} {
		return fmt.Errorf("mapped is %v after short ones from the heap", a.allMapped)
	}
	return free()
}

// Two ranks each reduce all of what fits in their caches, and slices of what is longer; in place the result lies aside until the
// other rank has read.
func TestMappedAllreduceOfTwo(t *testing.T) {
	const caches = 512 << 10
	lengths := []int{4 << 10, caches, caches + 8} // bytes
	overSharedMemory(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Model: mappedModel()}); err != nil {
			return err
		}
		v, err := onSlab(c, caches/4+2)
		if err != nil {
			return err
		}
		if err := agreeToMap(ctx, c, v); err != nil {
			return err
		}
		for _, bytes := range lengths {
			n := bytes / 4
			for i := range 3 * slots {
				send, recv := v.send[:n], v.recv[:n]
				if i%2 == 1 {
					recv = send
				}
				for j := range send {
					send[j] = int32((j + i) * (c.Rank() + 1))
				}
				if err := Allreduce(ctx, c, send, recv, Sum); err != nil {
					return err
				}
				for j, got := range recv {
					if want := int32((j + i) * 3); got != want {
						return fmt.Errorf("%d bytes, call %d, element %d: %d, want %d", bytes, i, j, got, want)
					}
				}
			}
			if a := stateOf(c).arena.Load(); !a.allMapped[long] || bytes <= slotBytes && !a.allMapped[short] {
				return fmt.Errorf("allreduces of %d bytes are not direct", bytes)
			}
		}
		return nil
	})
}

// What more than two ranks read by the kernel they read as memory of their own where all can map it; a scatter then needs no messages.
func TestMappedInsteadOfTheKernel(t *testing.T) {
	const n, rounds = 50_000, 3 * slots
	m := mappedModel()
	m.Host.OneWay, m.Pieces = plan.Linear(0, 1e-9), plan.Linear(1e9, 1) // direct, whatever the vectors
	overSharedMemory(t, 3, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Model: m}); err != nil {
			return err
		}
		slab, err := onSlab(c, n)
		if err != nil {
			return err
		}
		if err := agreeToMap(ctx, c, slab); err != nil {
			return err
		}
		for _, k := range []struct {
			mapped bool
			v      vectors
		}{{false, onHeap(c, n)}, {true, slab}} {
			for i := range rounds {
				for j := range k.v.send {
					k.v.send[j] = int32(i + j)
				}
				if err := Scatter(ctx, c, k.v.send, k.v.recv[:n], 0); err != nil {
					return err
				}
				for j, got := range k.v.recv[:n] {
					if want := int32(i + j + n*c.Rank()); got != want {
						return fmt.Errorf("mapped %v, call %d, element %d: %d, want %d", k.mapped, i, j, got, want)
					}
				}
			}
			s := stateOf(c)
			if e := s.last[plan.Scatter]; e.way != byDirect || s.arena.Load().allMapped[long] != k.mapped {
				return fmt.Errorf("way %d, mapped %v, want %d, %v", e.way, s.arena.Load().allMapped[long], byDirect, k.mapped)
			}
		}
		return Barrier(ctx, c)
	})
}

// TestFarMapped: among ranks that find each other far a bcast of vectors that all can map leaves the pieces, also where pieces are
// cheaper while they are near. That of others does not.
func TestFarMapped(t *testing.T) {
	const most = 4 * farMeetings // calls in which the ranks agree
	m := *defaultModel
	m.Host.OneWay, m.Host.Exchange = plan.Linear(1, 1), plan.Linear(1, 1) // no messages
	m.Read, m.Mapped = plan.Linear(1, 1), plan.Linear(1, 1)               // direct only when far
	const n, rounds, direct = 3 * pieceBytes / 4, 3, 2                    // int32s, and steps
	overSharedMemory(t, 3, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Model: &m}); err != nil {
			return err
		}
		for range arenaAfter + 1 {
			if err := Barrier(ctx, c); err != nil {
				return err
			}
		}
		a := stateOf(c).arena.Load()
		if a == nil {
			return errors.New("the ranks do not share memory")
		}
		if c.Rank() == 0 { // who writes
			a.pace.kernel = 0 // all is slower
		}
		slab, err := onSlab(c, n)
		if err != nil {
			return err
		}
		for _, k := range []struct {
			mapped bool
			v      vectors
			steps  uint64
		}{{true, slab, direct}, {false, onHeap(c, n), rounds}} {
			took := map[uint64]int{}
			for i := 0; !a.pace.far || a.allMapped[long] != k.mapped || len(took) == 0; i++ {
				far := a.pace.far && a.allMapped[long] == k.mapped
				before := a.steps
				if err := Bcast(ctx, c, k.v.recv[:n], 0); err != nil {
					return err
				}
				if far {
					took[a.steps-before]++
				}
				if i == most {
					return fmt.Errorf("far %v, mapped %v", a.pace.far, a.allMapped[long])
				}
			}
			for range fewMeetings / 2 {
				before := a.steps
				if err := Bcast(ctx, c, k.v.recv[:n], 0); err != nil {
					return err
				}
				took[a.steps-before]++
			}
			if took[k.steps] <= fewMeetings/4 { // some look whether the ranks are still far
				return fmt.Errorf("mapped %v: steps %v, want %d of most", k.mapped, took, k.steps)
			}
		}
		return Barrier(ctx, c)
	})
}
