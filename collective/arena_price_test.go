package collective

import (
	"math"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// Ranks may differ in whether a call is in place, and must do it alike all the same.
func TestArenaPricesDoNotDependOnInPlace(t *testing.T) {
	cfg := Config{Model: defaultModel}
	for kind := range plan.Exscan + 1 {
		for _, size := range []int{2, 3, 8} {
			for _, perCore := range []float64{1, 2} {
				for n := 1 << 10; n <= 1<<22; n *= 2 {
					p := plan.Problem{Kind: kind, Size: size, Count: n, ElemBytes: 4, RanksPerCore: perCore}
					if kind == plan.ReduceScatter {
						p.Counts = make([]int, size)
						p.Counts[0] = n
					}
					inPlace := p
					inPlace.InPlace = true
					for i, way := range arenaWays(&p, cfg.Model, true) {
						if other := arenaWays(&inPlace, cfg.Model, true)[i]; other != way {
							t.Errorf("%s of %d by %d ranks: %+v, in place %+v", kind, n, size, way, other)
						}
					}
					if cfg.readsMapped(MemoryPlan, &p, true) != cfg.readsMapped(MemoryPlan, &inPlace, true) {
						t.Errorf("%s of %d by %d ranks is read from memory that is mapped only when it is in place, or only when not", kind, n, size)
					}
				}
			}
		}
	}
}

// To figures that were measured by ranks that share a processor nothing is added for sharing it, as in plans.
func TestArenaPricesAddNoTurnsTwice(t *testing.T) {
	measured := defaultModel.Clone()
	measured.Switch = 0
	for _, kind := range plan.Kinds() {
		for _, n := range []int{1 << 10, 1 << 20} {
			alone := plan.Problem{Kind: kind, Size: 4, Count: n, ElemBytes: 4}
			shared := alone
			shared.RanksPerCore = 4
			for i, way := range arenaWays(&alone, measured, true) {
				if other := arenaWays(&shared, measured, true)[i]; other != way {
					t.Errorf("%s of %d: %+v, where 4 ranks share a processor %+v", kind, n, way, other)
				}
			}
			for i, way := range arenaWays(&alone, defaultModel, true) {
				if other := arenaWays(&shared, defaultModel, true)[i]; other.Seconds <= way.Seconds {
					t.Errorf("%s of %d: %+v, where 4 ranks share a processor %+v", kind, n, way, other)
				}
			}
		}
	}
}

// A curve is of vectors of two ranks. Where a collective's take more memory than those, its bytes cost what they cost where as
// much was in use.
func TestArenaPricesCountAllVectors(t *testing.T) {
	const n, near, far = 4 << 20, 0.1e-9, 1e-9 // bytes, and seconds for each up to n and beyond
	knee := plan.Curve{{Bytes: 0}, {Bytes: n, Seconds: n * near}, {Bytes: 2 * n, Seconds: n * (near + far)}}
	m := &plan.Model{Given: knee, Pieces: knee, Copy: plan.Linear(0, 0), Combine: plan.Linear(0, 0), Host: plan.Link{OneWay: plan.Linear(0, 0)}}
	for _, k := range []struct {
		kind plan.Kind
		want float64 // of a vector, or a block, of n bytes
	}{
		{plan.Bcast, n * near},                         // two vectors, as those of Given
		{plan.Reduce, n * (near + far/2) / 1.5},        // three: those of 1.5 n, of which n count
		{plan.Gather, n * (near + far) / 2},            // the root's block and both, and the other's
		{plan.Allgather, n * near},                     // six, as those of Pieces
		{plan.Alltoall, n * (near + far/3) / (4. / 3)}, // eight
	} {
		p := &plan.Problem{Kind: k.kind, Size: 2, Count: n / 4, ElemBytes: 4}
		if got := memorySeconds(p, m); math.Abs(got-k.want) > 1e-3*k.want {
			t.Errorf("%v of %d B takes %g s, want %g", k.kind, n, got, k.want)
		}
	}
}

// A root that scatters what caches have room for copies its own block after the others have theirs; of more they wait for it, too,
// and it takes longer.
func TestScatterWaitsForTheRootsOwnBlockWhereItFitsNoCache(t *testing.T) {
	const each = 1e-9 // seconds for a byte copied
	free := plan.Linear(0, 0)
	m := &plan.Model{Given: free, Pieces: free, Copy: plan.Linear(0, each), Combine: free, Host: plan.Link{OneWay: free}}
	for n, share := range map[int]float64{1 << 20: 0.5, 64 << 20: coldOwn} {
		p := &plan.Problem{Kind: plan.Scatter, Size: 2, Count: n / 4, ElemBytes: 4}
		if got, want := memorySeconds(p, m), share*each*float64(n); math.Abs(got-want) > 1e-3*want {
			t.Errorf("blocks of %d B take %g s, want %g", n, got, want)
		}
	}
}

// A block of a vector that is too long for a slot costs as much as one that is itself.
func TestPriceOfABlockThatLiesInTheStore(t *testing.T) {
	free := plan.Linear(0, 0)
	step := plan.Curve{{Bytes: inlineBytes}, {Bytes: slotWords * 8, Seconds: 1e-6}}
	m := &plan.Model{Given: step, Pieces: step, Copy: free, Combine: free, Host: plan.Link{OneWay: free}}
	for _, k := range []struct {
		kind   plan.Kind
		n      int // bytes of a block
		stored bool
	}{
		{plan.Scatter, inlineBytes / 2, false}, {plan.Scatter, inlineBytes/2 + 4, true}, {plan.Alltoall, inlineBytes/2 + 4, true},
		{plan.Gather, inlineBytes/2 + 4, false}, {plan.Allreduce, inlineBytes/2 + 4, false},
	} {
		p := &plan.Problem{Kind: k.kind, Size: 2, Count: k.n / 4, ElemBytes: 4}
		if got := memorySeconds(p, m); (got >= 1e-6) != k.stored {
			t.Errorf("%v of blocks of %d B takes %g s", k.kind, k.n, got)
		}
	}
}

// Memory turns to direct reading where ranks are far, and not the other way round, so that it is taken unless direct reading is
// cheaper by more than prices are exact.
func TestArenaPrefersWhatCanTurn(t *testing.T) {
	const n = 1 << 20
	for _, k := range []struct {
		read    float64 // of what pieces take
		perCore float64
		want    string
		why     string
	}{
		{1.1, 1, MemoryPlan, "cheapest"},
		{0.95, 1, MemoryPlan, "not more than 10 % dearer than direct"},
		{0.8, 1, DirectPlan, "cheapest"},
		{0.8, 2, MemoryPlan, "not more than 50 % dearer than direct"},
		{0.6, 2, DirectPlan, "cheapest"},
	} {
		m := defaultModel.Clone()
		m.Copy, m.Cross, m.Host.Exchange = plan.Linear(0, 0), 0, plan.Linear(0, 1e-9)
		m.Pieces, m.Read = plan.Linear(0, 1e-10), plan.Linear(0, k.read*1e-10)
		p := &plan.Problem{Kind: plan.Allgather, Size: 2, Count: n / 4, ElemBytes: 4, RanksPerCore: k.perCore}
		cfg := Config{Model: m}
		if name, why, _ := cfg.arenaWay(p, true); name != k.want || !strings.Contains(why, k.why) {
			t.Errorf("reading takes %g of what pieces do, %g ranks a core: %s, %s; want %s, %s", k.read, k.perCore, name, why, k.want, k.why)
		}
	}
}

// Two ranks read each other's memory only where that is cheaper than messages, of which both copy a part; more of them also where it
// is a little dearer.
func TestReadingAgainstMessages(t *testing.T) {
	const n = 1 << 20
	free := plan.Linear(0, 0)
	for _, k := range []struct {
		ranks int
		read  float64 // of what messages take
		want  string
	}{{2, 0.95, DirectPlan}, {2, 1.05, ""}, {4, 1.05, DirectPlan}} {
		m := defaultModel.Clone()
		m.Copy, m.Cross, m.Overhead = free, 0, 0
		m.Host.Exchange, m.Pieces = plan.Linear(0, 1e-10), plan.Linear(0, 1e-8)
		m.Read = plan.Linear(0, k.read*1e-10)
		p := &plan.Problem{Kind: plan.Allgather, Size: k.ranks, Count: n / 4, ElemBytes: 4}
		cfg := Config{Model: m}
		if name, why, _ := cfg.arenaWay(p, true); name != k.want {
			t.Errorf("reading takes %g of what messages of %d ranks do: %q, %s; want %q", k.read, k.ranks, name, why, k.want)
		}
	}
}

// Vectors that may turn out to be mapped stay in the arena although messages are cheaper than what is done while they are not: that is
// the cheaper of its ways then.
func TestVectorsThatMayBeMapped(t *testing.T) {
	const n = 1 << 20
	free := plan.Linear(0, 0)
	for _, k := range []struct {
		pieces, mapped float64 // of what messages take; reading takes twice as long
		want, why      string
	}{
		{3, 0.3, DirectPlan, "mpi.Alloc"},
		{1.5, 0.3, MemoryPlan, "mpi.Alloc"},
		{3, 1.2, "", ""},
	} {
		m := defaultModel.Clone()
		m.Copy, m.Cross, m.Overhead, m.Given = free, 0, 0, free
		m.Host.Exchange = plan.Linear(0, 1e-10)
		m.Pieces, m.Read, m.Mapped = plan.Linear(0, k.pieces*1e-10), plan.Linear(0, 2e-10), plan.Linear(0, k.mapped*1e-10)
		p := &plan.Problem{Kind: plan.Allgather, Size: 4, Count: n / 4, ElemBytes: 4}
		cfg := Config{Model: m}
		name, why, _ := cfg.arenaWay(p, true)
		if name != k.want || !strings.Contains(why, k.why) {
			t.Errorf("pieces take %g of what messages do, mapped vectors %g: %q, %s; want %q, %s", k.pieces, k.mapped, name, why, k.want, k.why)
		}
		if name != "" && !cfg.readsMapped(name, p, true) {
			t.Errorf("%s does not turn to mapped vectors", name)
		}
	}
}

// Where ranks share processors, a collective of a root takes as long as the root works, and the others' work is done while they wait for it; that
// of all takes all processors.
func TestWhoWaitsForTheRootNeedsNoProcessor(t *testing.T) {
	m := defaultModel.Clone()
	m.Switch = 1e-9
	for _, k := range []struct {
		kind        plan.Kind
		least, most float64 // of what it takes with a processor each
	}{
		{plan.Gather, 0.9, 1.1}, {plan.Reduce, 0.9, 1.1}, {plan.Scatter, 1, 1.5},
		{plan.Allgather, 1.9, 2.1}, {plan.Alltoall, 1.9, 2.1}, {plan.ReduceScatter, 1.9, 2.1},
	} {
		alone := plan.Problem{Kind: k.kind, Size: 4, Count: 1 << 18, ElemBytes: 4}
		shared := alone
		shared.RanksPerCore = 2
		if got := memorySeconds(&shared, m) / memorySeconds(&alone, m); got < k.least || got > k.most {
			t.Errorf("%v takes %g times as long where two ranks share a processor, want %g to %g", k.kind, got, k.least, k.most)
		}
	}
}

// A vector's price for a byte is that of as much memory as is in use, but a short one is not cheaper for being one of several.
func TestPriceOfPartOfTheMemoryInUse(t *testing.T) {
	// 10 ns to begin with; for a byte 1 ns up to 1,000, less up to 2,000, which overlap, and more where caches end.
	curve := plan.Curve{{Bytes: 0, Seconds: 10e-9}, {Bytes: 1000, Seconds: 1010e-9}, {Bytes: 2000, Seconds: 1210e-9}, {Bytes: 4000, Seconds: 8010e-9}}
	for _, c := range []struct {
		inUse footprintBytes
		n     int
		want  float64 // in ns
	}{
		{0, 1000, 1000},
		{2000, 1000, 1000}, // two vectors of 1,000
		{4000, 1000, 1000}, // and not the half of 1,200
		{8000, 1000, 2000}, // a quarter of 8,000
		{2000, 2000, 2000}, // twice 1,000: there is less than when 2,000 were measured
		{0, 0, 1},
	} {
		if got := c.inUse.partOf(curve, 2, c.n) * 1e9; math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%d of %d bytes in use: %.3f ns, want %.0f", c.n, c.inUse, got, c.want)
		}
	}
}
