package bench

import (
	"context"
	"errors"
	"math/bits"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// TestScaleAllreduce: what the model picks stays close to the bounds, and
// never beats the one that no schedule can.
func TestScaleAllreduce(t *testing.T) {
	for _, c := range []struct {
		network *sim.Network
		bytes   int
		most    float64 // of the bound with a link for each rank
	}{
		{sim.FDR(), 8, 1.3},
		{sim.FDR(), 64 << 10, 2},
		{sim.FDR(), 16 << 20, 1.3},
		{sim.HDR100(), 8, 1.3},
		{sim.HDR100(), 64 << 10, 2},
		{sim.HDR100(), 16 << 20, 1.3},
	} {
		scaleWithin(t, c.network, 4*c.network.RanksPerNode, c.bytes, c.most)
	}
}

// scaleWithin fails t where an allreduce takes more than so many times the bound, or less than any can.
func scaleWithin(t *testing.T, network *sim.Network, ranks, nBytes int, most float64) {
	t.Helper()
	x, err := Scale(t.Context(), ScaleOptions{Kind: plan.Allreduce, Network: network}, ranks, nBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d B over %d ranks by %s: %v, bounds %v and %v, in %v", network.Name, nBytes, ranks, x.Plan, x.Simulated, x.Bound, x.Shared, x.Wall)
	if x.Ratio() > most {
		t.Errorf("%s: %d B over %d ranks by %s take %v, %.2f times the bound; want at most %.2f", network.Name, nBytes, ranks, x.Plan, x.Simulated, x.Ratio(), most)
	}
	if x.Simulated < x.Shared {
		t.Errorf("%s: %d B over %d ranks by %s take %v, less than the %v that the node's link and processors need", network.Name, nBytes, ranks, x.Plan, x.Simulated, x.Shared)
	}
}

// TestSoakScaleAllreduce holds the limits at 4,096 ranks: of the shortest vectors, which takes seconds, and where
// FISTERRA_SOAK is set of all, which takes minutes and gigabytes of address space.
func TestSoakScaleAllreduce(t *testing.T) {
	networks := []*sim.Network{sim.FDR(), sim.HDR100()}
	limits := []struct {
		bytes int
		most  float64
	}{{8, 1.3}, {64 << 10, 2}, {16 << 20, 1.3}, {1 << 30, 1.3}}
	if os.Getenv(mpitest.SoakVariable) == "" {
		networks, limits = networks[:1], limits[:1]
	}
	for _, network := range networks {
		for _, c := range limits {
			scaleWithin(t, network, 4096, c.bytes, c.most)
		}
	}
}

// TestSoakScaleEveryPlan simulates each plan: of few rounds on 4,096 ranks, of many, such as rings, on 1,024. Each has five minutes,
// and 8 GiB.
func TestSoakScaleEveryPlan(t *testing.T) {
	if os.Getenv(mpitest.SoakVariable) == "" {
		t.Skip("takes minutes: set " + mpitest.SoakVariable)
	}
	const many, some, bytes, memoryKiB = 4096, 1024, 8, 8 << 20
	network := sim.FDR()
	for _, kind := range plan.Kinds() {
		for _, planner := range plan.Planners(kind) {
			o := ScaleOptions{Kind: kind, Network: network, Plan: planner.Name}
			p := &plan.Problem{Kind: kind, Size: many, Count: bytes / elementBytes, ElemBytes: elementBytes, Nodes: plan.NewNodes(many, o.host)}
			if why := planner.Why(p); why != "" {
				t.Logf("%v by %s: %s", kind, planner.Name, why)
				continue
			}
			ranks := many
			if len(planner.Build(p).Rounds) > 4*bits.Len(many) {
				ranks = some
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			x, err := Scale(ctx, o, ranks, bytes)
			cancel()
			if err != nil {
				t.Errorf("%v by %s on %d ranks: %v", kind, planner.Name, ranks, err)
				continue
			}
			var usage unix.Rusage
			if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
				t.Fatal(err)
			}
			t.Logf("%v by %s on %d ranks: %v, %d messages, in %v; at most %d MiB so far", kind, planner.Name, ranks, x.Simulated, x.Messages, x.Wall, usage.Maxrss>>10)
			if usage.Maxrss > memoryKiB {
				t.Fatalf("%d KiB of memory, want at most %d", usage.Maxrss, memoryKiB)
			}
			debug.FreeOSMemory() // what a plan needs does not count for the next
		}
	}
}

// TestScaleCheck: a plan that does not fit is not simulated as another, nor a size as another, and what is simulated is said.
func TestScaleCheck(t *testing.T) {
	for _, c := range []struct {
		kind         plan.Kind
		plan         string
		ranks, bytes int
	}{
		{plan.Allreduce, "", 0, 8}, {plan.Alltoall, "", 0, 8}, {plan.Alltoall, "bruck", -1, 8}, {plan.Bcast, "", 4, -8},
		{plan.Allreduce, "none", 4, 8}, {plan.Allreduce, "memory", 4, 8}, {plan.Allreduce, "node+doubling", 4, 8}, {plan.Bcast, "", 4, 7},
	} {
		o := ScaleOptions{Kind: c.kind, Network: sim.FDR(), Plan: c.plan}
		x, err := Scale(t.Context(), o, c.ranks, c.bytes)
		if checked := o.Check(c.ranks, c.bytes); !errors.Is(err, ErrUsage) || !errors.Is(checked, ErrUsage) {
			t.Errorf("%+v: %+v, %v; checked %v", c, x, err, checked)
		}
	}
	for _, kind := range plan.Kinds() {
		for _, a := range plan.Planners(kind) {
			for _, nBytes := range []int{8, 64 << 10} {
				o := ScaleOptions{Kind: kind, Network: sim.FDR(), Plan: a.Name}
				if o.Check(48, nBytes) != nil {
					continue
				}
				if x, err := Scale(t.Context(), o, 48, nBytes); err != nil || x.Plan != a.Name {
					t.Errorf("%v of %d B by %s: %+v, %v", kind, nBytes, a.Name, x, err)
				}
			}
		}
	}
	if x, err := Scale(t.Context(), ScaleOptions{Kind: plan.Bcast, Network: sim.FDR()}, 4, 0); err != nil || x.Bytes != elementBytes {
		t.Errorf("%+v, %v: want the size of the element that is simulated", x, err)
	}
}

// Nodes of which one has fewer ranks need the most memory on the way.
func TestScaleOnUnevenNodes(t *testing.T) {
	for _, k := range []struct{ perNode, cyclic, ranks int }{{16, 0, 17}, {16, 0, 31}, {24, 5, 9}, {2, 0, 5}} {
		network := *sim.FDR()
		network.RanksPerNode, network.Cyclic = k.perNode, k.cyclic
		for _, a := range plan.Planners(plan.Alltoall) {
			o := ScaleOptions{Kind: plan.Alltoall, Network: &network, Plan: a.Name}
			if _, err := Scale(t.Context(), o, k.ranks, 4<<20); err != nil {
				t.Errorf("%+v: %s: %v", k, a.Name, err)
			}
		}
	}
}

// One point, which takes exactly what it must, has a plot, too.
func TestPlotScaleOfOneTime(t *testing.T) {
	for _, took := range []time.Duration{400 * time.Nanosecond, time.Microsecond, time.Millisecond} {
		var out strings.Builder
		err := PlotScale(&out, "one", []ScalePoint{{Ranks: 2, Asked: 8, Bytes: 8, Simulated: took, Bound: took}})
		if err != nil || !strings.Contains(out.String(), "</svg>") || strings.Contains(out.String(), "NaN") {
			t.Errorf("%v: %v: %s", took, err, out.String())
		}
	}
}

// Points of a size that was asked for are one line, also where ranks have blocks, which are rounded to whole elements.
func TestPlotScaleBySize(t *testing.T) {
	const asked = 1000
	var points []ScalePoint
	for _, ranks := range []int{3, 7, 12} {
		x, err := Scale(t.Context(), ScaleOptions{Kind: plan.Allgather, Network: sim.FDR()}, ranks, asked)
		if err != nil {
			t.Fatal(err)
		}
		if x.Asked != asked || x.Bytes > asked {
			t.Errorf("%d ranks: %+v", ranks, x)
		}
		points = append(points, x)
	}
	var out strings.Builder
	if err := PlotScale(&out, "blocks", points); err != nil {
		t.Fatal(err)
	}
	if sizes := regexp.MustCompile(`>[0-9]+ B<`).FindAllString(out.String(), -1); !slices.Equal(sizes, []string{">1000 B<"}) {
		t.Errorf("lines for %q", sizes)
	}
}

// TestScaleBlocks: every collective is simulated, and where ranks have blocks each has an element at least.
func TestScaleBlocks(t *testing.T) {
	const ranks = 96
	for _, kind := range plan.Kinds() {
		for _, n := range []int{8, 64 << 10} {
			x, err := Scale(t.Context(), ScaleOptions{Kind: kind, Network: sim.FDR()}, ranks, n)
			if err != nil {
				t.Errorf("%v of %d B: %v", kind, n, err)
				continue
			}
			want := n
			switch {
			case kind.HasBlocks():
				want = max(1, n/elementBytes/ranks) * ranks * elementBytes
			case kind == plan.Barrier:
				want = 0
			}
			if x.Bytes != want || x.Simulated == 0 || x.Messages < ranks-1 {
				t.Errorf("%v of %d B: %d B in %v with %d messages; want %d B and a message for each rank", kind, n, x.Bytes, x.Simulated, x.Messages, want)
			}
		}
	}
}

// TestSharedBoundOfCyclicRanks: the fullest of nodes to which ranks are dealt in turn has no more than its share.
func TestSharedBoundOfCyclicRanks(t *testing.T) {
	block, cyclic := sim.FDR(), sim.FDR()
	block.RanksPerNode, cyclic.Cyclic = 3, 2
	const reduceRate = 1e10
	if got, want := sharedBound(cyclic, 5, 1<<20, reduceRate), sharedBound(block, 5, 1<<20, reduceRate); got != want {
		t.Errorf("5 ranks dealt to 2 nodes: %v, in nodes of 3: %v", got, want)
	}
}

// TestBoundOfCyclicRanks: the bound is that of the links between nodes wherever ranks are on several, however few they are.
func TestBoundOfCyclicRanks(t *testing.T) {
	for _, nBytes := range []int{8, 1 << 20} {
		var bounds []time.Duration
		for _, k := range []struct{ perNode, cyclic int }{{2, 0}, {24, 2}, {2, 1}, {24, 0}} {
			network := sim.FDR()
			network.RanksPerNode, network.Cyclic = k.perNode, k.cyclic
			x, err := Scale(t.Context(), ScaleOptions{Kind: plan.Allreduce, Network: network}, 4, nBytes)
			if err != nil {
				t.Fatal(err)
			}
			bounds = append(bounds, x.Bound)
		}
		if bounds[0] != bounds[1] || bounds[2] != bounds[3] || bounds[0] == bounds[3] {
			t.Errorf("%d B over 4 ranks, on 2 nodes in order and in turn, on 1 in turn and in order: bounds %v", nBytes, bounds)
		}
	}
}

// TestScaleLevels: where the network decides, the plan that is chosen is one in levels, and takes less than the flat ones.
func TestScaleLevels(t *testing.T) {
	for _, c := range []struct {
		kind   plan.Kind
		bytes  int
		cyclic int // nodes to which ranks are dealt in turn
		want   string
		flat   []string
	}{
		{plan.ReduceScatter, 8 << 10, 0, "node+lanes", []string{"circulant"}},
		{plan.Alltoall, 8 << 10, 0, "node+lanes", []string{"bruck"}},
		{plan.Scan, 64 << 10, 0, "node+doubling", []string{"doubling", "chain/64K"}},
		{plan.Exscan, 64 << 10, 0, "node+doubling", []string{"doubling", "chain/64K"}},
		{plan.Allgather, 64 << 10, 0, "node+lanes", []string{"bruck", "cyclic", "ring"}},
		{plan.Allgather, 64 << 10, 4, "node+lanes", []string{"bruck", "cyclic", "ring"}},
		{plan.Allgather, 1 << 20, 4, "node+lanes", []string{"bruck", "cyclic", "ring"}},
	} {
		network := sim.FDR()
		network.Cyclic = c.cyclic
		o := ScaleOptions{Kind: c.kind, Network: network}
		best, err := Scale(t.Context(), o, 96, c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		if best.Plan != c.want {
			t.Errorf("%v of %d B, dealt to %d: %s, want %s", c.kind, c.bytes, c.cyclic, best.Plan, c.want)
		}
		for _, o.Plan = range c.flat {
			other, err := Scale(t.Context(), o, 96, c.bytes)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v of %d B, dealt to %d: %s in %v, %s in %v", c.kind, c.bytes, c.cyclic, best.Plan, best.Simulated, other.Plan, other.Simulated)
			if other.Plan != o.Plan || best.Simulated >= other.Simulated {
				t.Errorf("%v of %d B, dealt to %d: %s in %v, %s in %v", c.kind, c.bytes, c.cyclic, best.Plan, best.Simulated, other.Plan, other.Simulated)
			}
		}
	}
}
