package plan

import (
	"fmt"
	"slices"
	"testing"
)

// crowds makes nodes of so many ranks each, in turn, until all ranks have one.
func crowds(size int, ranks ...int) *Nodes {
	var node []int
	for n := 0; len(node) < size; n++ {
		node = append(node, slices.Repeat([]int{n}, ranks[n%len(ranks)])...)
	}
	return NewNodes(size, func(r int) string { return fmt.Sprint(node[r]) })
}

// TestNodesOfAnySize: plans in slices and lanes are proved on nodes whose
// sizes have small factors, large ones and none in common, and on many nodes.
func TestNodesOfAnySize(t *testing.T) {
	for _, c := range []struct {
		size  int
		ranks []int
	}{
		{15, []int{5}}, {18, []int{6}}, {23, []int{7, 6}}, {33, []int{8}}, {24, []int{11, 13}}, {50, []int{12, 20}},
		{23, []int{7, 1, 4, 11}}, {40, []int{1, 30, 9}}, {66, []int{2}}, {50, []int{1, 2}}, {86, []int{24}},
	} {
		nodes := crowds(c.size, c.ranks...)
		for _, kind := range []Kind{Allreduce, ReduceScatter} {
			for _, a := range Planners(kind) {
				for _, n := range []int{1, c.size + 3, 7 * c.size} {
					shape := Problem{Kind: kind, Size: c.size, Count: n, ElemBytes: 4}
					if kind == ReduceScatter {
						shape.Count = n % 5
					}
					for _, inPlace := range []bool{false, true} {
						if a.Why(shape.at(0, nodes, inPlace, false)) != "" {
							continue
						}
						if err := Verify(func(rank int) *Problem { return shape.at(rank, nodes, inPlace, false) }, a.Build); err != nil {
							t.Errorf("nodes of %v, %d elements, in place %v: %v", c.ranks, shape.Count, inPlace, err)
						}
					}
				}
			}
		}
	}
}

// TestSkips: every sequence of skips ends at the own block, in as few steps as it promises.
func TestSkips(t *testing.T) {
	for size := 2; size <= 300; size++ {
		for radix := 2; radix <= 5; radix++ {
			skips := radixSkips(size, radix)
			descends(t, size, skips)
			most := 0
			for n := 1; n < size; n *= radix {
				most++
			}
			if len(skips) != most {
				t.Errorf("%d blocks by %d: skips %v, want %d of them", size, radix, skips, most)
			}
		}
		for steps := 1; steps <= 9; steps++ {
			skips := pipelineSkips(size, steps)
			descends(t, size, skips)
			if least := len(radixSkips(size, slicedRadix)); len(skips) > max(steps, least) {
				t.Errorf("%d nodes beside %d steps: skips %v", size, steps, skips)
			}
		}
	}
}

func descends(t *testing.T, size int, skips []int) {
	t.Helper()
	before := size
	for _, s := range skips {
		if s >= before || s < 1 {
			t.Fatalf("%d blocks: skips %v", size, skips)
		}
		before = s
	}
	if before != 1 {
		t.Fatalf("%d blocks: skips %v end early", size, skips)
	}
}

// TestRunsAlike: runs of as many blocks differ by at most an element.
func TestRunsAlike(t *testing.T) {
	for _, n := range []int{0, 5, 23, 24, 25, 1000, 16384} {
		l := evenly(n, 24)
		for k := 1; k <= 24; k++ {
			for i := range 24 - k + 1 {
				if got := l.off(i+k) - l.off(i); got < n*k/24 || got > (n*k+23)/24 {
					t.Errorf("%d elements in 24 blocks: %d from block %d on have %d", n, k, i, got)
				}
			}
		}
		if l.total() != n {
			t.Errorf("%d elements became %d", n, l.total())
		}
	}
}

// TestFoldsOfARound: two operands may be added to the same memory in one
// round, in the order of the steps.
func TestFoldsOfARound(t *testing.T) {
	in, out := Loc{Send, 0}, Loc{Recv, 0}
	star := func(second Loc) func(*Problem) *Plan {
		return func(p *Problem) *Plan {
			b := newBuilder(p, "star")
			if p.Rank > 0 {
				b.putParts(0, in, p.Count)
				return b.done()
			}
			b.fold(1, out, in, p.Count)
			b.fold(2, out, second, p.Count)
			return b.done()
		}
	}
	problem := func(rank int) *Problem {
		return &Problem{Kind: Reduce, Rank: rank, Size: 3, Count: 4, ElemBytes: 4, Ordered: true}
	}
	if err := Verify(problem, star(out)); err != nil {
		t.Errorf("one after the other: %v", err)
	}
	if err := Verify(problem, star(in)); err == nil {
		t.Error("the second fold overwrites the first, and nothing was found wrong")
	}
}
