package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// provenSizes are the numbers of ranks for which every plan is proved.
func provenSizes(t *testing.T) []int {
	var sizes []int
	for p := 1; p <= 33; p++ {
		sizes = append(sizes, p)
	}
	if testing.Short() {
		return sizes
	}
	return append(sizes, 64, 100, 128)
}

// problems lists the shapes to prove for one size and root: short vectors,
// vectors that do not divide evenly, uneven and empty blocks. With elements so large vectors
// travel in segments and in parts.
func problems(k Kind, size, root, elemBytes int) []Problem {
	base := Problem{Kind: k, Size: size, Root: root, ElemBytes: elemBytes}
	with := func(n int, counts []int) Problem {
		p := base
		p.Count, p.Counts = n, counts
		return p
	}
	uneven := make([]int, size)
	for i := range uneven {
		uneven[i] = (i * 7 % 4) * (i % 3) // several zeros
	}
	switch k {
	case Barrier:
		return []Problem{base}
	case Gather, Allgather, Scatter, ReduceScatter:
		return []Problem{with(1, nil), with(3, nil), with(0, uneven)}
	case Alltoall:
		return []Problem{with(1, nil), with(2, nil), with(-1, nil)}
	}
	return []Problem{with(0, nil), with(1, nil), with(size+2, nil)}
}

// alltoallCounts is an uneven exchange: what rank i sends to rank j.
func alltoallCounts(i, j int) int { return (i*5 + j*3) % 4 }

func (p Problem) at(rank int, nodes *Nodes, inPlace, ordered bool) *Problem {
	p.Rank, p.Nodes, p.Ordered = rank, nodes, ordered
	p.InPlace = inPlace
	if p.Kind == Alltoall && p.Count < 0 {
		p.Count = 0
		p.SendCounts, p.RecvCounts = make([]int, p.Size), make([]int, p.Size)
		for r := range p.Size {
			p.SendCounts[r], p.RecvCounts[r] = alltoallCounts(rank, r), alltoallCounts(r, rank)
			if inPlace {
				p.SendCounts[r] = alltoallCounts(rank, r) + alltoallCounts(r, rank)
				p.RecvCounts[r] = p.SendCounts[r]
			}
		}
	}
	if (p.Kind == Gather || p.Kind == Reduce || p.Kind == Scatter) && rank != p.Root {
		p.InPlace = false
	}
	return &p
}

func hosts(size, perNode int, cyclic bool) *Nodes {
	n := (size + perNode - 1) / perNode
	return NewNodes(size, func(r int) string {
		if cyclic {
			return fmt.Sprint(r % n)
		}
		return fmt.Sprint(r / perNode)
	})
}

func TestEveryPlanIsProved(t *testing.T) {
	for _, k := range Kinds() {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			for _, size := range provenSizes(t) {
				layouts := []*Nodes{nil, hosts(size, 3, false), hosts(size, 4, true)}
				if size > 33 {
					layouts = []*Nodes{nil, hosts(size, 24, false)}
				}
				for root := range roots(k, size) {
					for _, shape := range problems(k, size, root, 4) {
						proveShape(t, shape, Planners(k), layouts)
					}
				}
			}
		})
	}
}

// Every planner that cuts vectors into segments is proved with one, two and several of them, the last of which may be
// shorter, for every root.
func TestEveryPipelineIsProved(t *testing.T) {
	for _, k := range Kinds() {
		planners := slices.DeleteFunc(Planners(k), func(a Planner) bool { return !strings.HasPrefix(a.Name, "chain/") })
		if len(planners) == 0 {
			continue
		}
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			for _, size := range provenSizes(t) {
				for root := range roots(k, size) {
					for _, shape := range pipelines(k, size, root) {
						proveShape(t, shape, planners, []*Nodes{nil})
					}
				}
			}
		})
	}
}

// pipelines lists shapes of 1 to 6 segments of 16 KiB, 1 to 5 of 64 KiB and 1 and 2 of 256 KiB.
func pipelines(k Kind, size, root int) []Problem {
	var shapes []Problem
	for _, s := range []struct{ elemBytes, count int }{
		{8 << 10, 2}, {8 << 10, 3}, {8 << 10, 11}, {16 << 10, 3}, {64 << 10, 5}, {128 << 10, 3},
	} {
		shapes = append(shapes, Problem{Kind: k, Size: size, Root: root, ElemBytes: s.elemBytes, Count: s.count})
	}
	return shapes
}

// roots is the number of roots of a collective.
func roots(k Kind, size int) int {
	if k.Rooted() {
		return size
	}
	return 1
}

// proveShape proves what planners make of a problem on layouts of hosts; nil is one host.
func proveShape(t *testing.T, shape Problem, planners []Planner, layouts []*Nodes) {
	t.Helper()
	for _, nodes := range layouts {
		for _, ordered := range []bool{false, true} {
			if ordered && !shape.Kind.Reduces() {
				continue
			}
			for _, inPlace := range []bool{false, true} {
				if inPlace && (shape.Kind == Barrier || shape.Kind == Bcast) || ordered && inPlace && shape.Size > 33 {
					continue
				}
				for _, a := range planners {
					if nodes != nil && !strings.HasPrefix(a.Name, "node") {
						continue
					}
					if a.Why(shape.at(0, nodes, inPlace, ordered)) != "" {
						continue
					}
					err := Verify(func(rank int) *Problem { return shape.at(rank, nodes, inPlace, ordered) }, a.Build)
					if err != nil {
						t.Fatalf("nodes %v, root %d, %d elements of %d B, counts %v, in place %v, ordered %v: %v",
							nodes, shape.Root, shape.Count, shape.ElemBytes, shape.Counts, inPlace, ordered, err)
					}
				}
			}
		}
	}
}
