package plan

import "testing"

// Plans behind a barrier are proved, as CheckAll has them: their messages are none of the barrier's.
func TestPlansAfterBarriersAreProved(t *testing.T) {
	for _, barrier := range Planners(Barrier) {
		for _, k := range Kinds() {
			for _, size := range []int{1, 2, 3, 4, 6, 9} {
				nodes := hosts(size, 2, false)
				for _, shape := range problems(k, size, size/2, 4) {
					for _, a := range Planners(k) {
						if a.Why(shape.at(0, nodes, false, false)) != "" {
							continue
						}
						build := func(p *Problem) *Plan {
							return a.Build(p).After(barrier.Build(&Problem{Kind: Barrier, Rank: p.Rank, Size: p.Size, Nodes: p.Nodes}))
						}
						if err := Verify(func(rank int) *Problem { return shape.at(rank, nodes, false, false) }, build); err != nil {
							t.Fatalf("%v by %s after %s, %d ranks, %d elements, counts %v: %v", k, a.Name, barrier.Name, size, shape.Count, shape.Counts, err)
						}
					}
				}
			}
		}
	}
}
