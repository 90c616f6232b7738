package plan

import (
	"fmt"
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
// vectors that do not divide evenly, uneven and empty blocks.
func problems(k Kind, size, root int) []Problem {
	base := Problem{Kind: k, Size: size, Root: root, ElemBytes: 4}
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
				proveSize(t, k, size)
			}
		})
	}
}

func proveSize(t *testing.T, k Kind, size int) {
	layouts := []*Nodes{nil, hosts(size, 3, false), hosts(size, 4, true)}
	if size > 33 {
		layouts = []*Nodes{nil, hosts(size, 24, false)}
	}
	roots := 1
	if k.Rooted() {
		roots = size
	}
	for root := range roots {
		for i, shape := range problems(k, size, root) {
			if size > 33 && k.Rooted() && root%7 != 0 && i == 2 {
				continue // every root is proved with the short shapes
			}
			for _, nodes := range layouts {
				for _, ordered := range []bool{false, true} {
					if ordered && !k.Reduces() {
						continue
					}
					for _, inPlace := range []bool{false, true} {
						if inPlace && (k == Barrier || k == Bcast) || ordered && inPlace && size > 33 {
							continue
						}
						for _, a := range Planners(k) {
							if nodes != nil && !strings.HasPrefix(a.Name, "node") {
								continue
							}
							if a.Why(shape.at(0, nodes, inPlace, ordered)) != "" {
								continue
							}
							err := Verify(func(rank int) *Problem { return shape.at(rank, nodes, inPlace, ordered) }, a.Build)
							if err != nil {
								t.Fatalf("root %d, %d elements, counts %v, in place %v, ordered %v: %v", root, shape.Count, shape.Counts, inPlace, ordered, err)
							}
						}
					}
				}
			}
		}
	}
}
