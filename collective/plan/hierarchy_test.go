package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// maps are ways in which ranks lie on nodes.
func maps(size int, rng *rand.Rand) []*Nodes {
	dealt := func(block, nodes int) *Nodes {
		return NewNodes(size, func(r int) string { return fmt.Sprint(r / block % nodes) })
	}
	return []*Nodes{
		crowds(size, 4), crowds(size, 5, 2, 7), // even, uneven
		crowds(size, 1, 6), NewNodes(size, func(r int) string { return fmt.Sprint(r == size-1) }), // some alone, the last alone
		dealt(1, 3), dealt(1, max(1, size/2)), dealt(2, 4), // in turn, to few and to many, in pairs
		NewNodes(size, func(r int) string { return fmt.Sprint(min(r, 1+r%2)) }), // in turn but for the first
		NewNodes(size, func(int) string { return fmt.Sprint(rng.IntN(4)) }),
	}
}

// TestHierarchiesOnEveryMap: every plan in levels is proved wherever the ranks lie.
func TestHierarchiesOnEveryMap(t *testing.T) {
	const seed = 5
	for _, k := range Kinds() {
		if k == Alltoall {
			continue // in lanes only, of which TestEveryPlanIsProved has both orders
		}
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			for _, size := range provenSizes(t) {
				root := 0
				if k.Rooted() {
					root = size / 2
				}
				shapes := problems(k, size, root, 4)
				if size > 33 {
					shapes = shapes[len(shapes)-1:]
				}
				for _, shape := range shapes {
					proveShape(t, shape, Planners(k), maps(size, rng))
				}
			}
		})
	}
}

// TestPrefixesNeedOrder: scans in levels are for nodes of consecutive ranks, gathering in levels is for all.
func TestPrefixesNeedOrder(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		name  string
		nodes *Nodes
		fits  bool
	}{
		{Scan, "node+doubling", hosts(24, 6, false), true},
		{Scan, "node+doubling", hosts(24, 6, true), false},
		{Exscan, "node+doubling", crowds(24, 5, 1), true},
		{Exscan, "node+doubling", hosts(24, 6, true), false},
		{Scan, "node+doubling", hosts(24, 1, false), false},
		{Exscan, "node+doubling", hosts(24, 24, false), false},
		{Allgather, "node+ring", hosts(24, 6, true), true},
		{Allgather, "node+lanes", hosts(24, 6, false), true},
	} {
		a, ok := Named(c.kind, c.name)
		if !ok {
			t.Fatalf("%v has no %s", c.kind, c.name)
		}
		if why := a.Why(&Problem{Kind: c.kind, Size: 24, Nodes: c.nodes}); (why == "") != c.fits {
			t.Errorf("%v by %s on nodes %v: %q", c.kind, c.name, c.nodes.Members, why)
		}
	}
}

// TestScratchOfScans: a rank needs no more than four vectors besides the user's.
func TestScratchOfScans(t *testing.T) {
	for _, k := range []Kind{Scan, Exscan} {
		for _, a := range Planners(k) {
			for rank := range 12 {
				for _, inPlace := range []bool{false, true} {
					p := &Problem{Kind: k, Rank: rank, Size: 12, Count: 10, ElemBytes: 4, InPlace: inPlace, Nodes: hosts(12, 4, false)}
					if w := a.Build(p).Work; w > 4*p.Count {
						t.Errorf("%v by %s, rank %d: %d elements of scratch for %d", k, a.Name, rank, w, p.Count)
					}
				}
			}
		}
	}
}

// TestLevelsOfScans: on a cluster a scan is done in levels where the network decides, and as a pipeline where its length does.
func TestLevelsOfScans(t *testing.T) {
	for _, kind := range []Kind{Scan, Exscan} {
		for _, c := range []struct {
			bytes  int
			cyclic bool
			want   string
		}{
			{8 << 10, false, "node+doubling"}, {256 << 10, false, "node+doubling"}, {64 << 20, false, "chain/64K"},
			{8 << 10, true, "doubling"},
		} {
			p := &Problem{Kind: kind, Size: 264, Count: c.bytes / 4, ElemBytes: 4, Nodes: hosts(264, 24, c.cyclic)}
			if best := Rank(p, cluster())[0]; best.Name != c.want {
				t.Errorf("%v of %d B, cyclic %v: %s, want %s", kind, c.bytes, c.cyclic, best.Name, c.want)
			}
		}
	}
}
