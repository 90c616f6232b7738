package plan

import "math/bits"

// tree is one member's place in a binomial tree rooted at member 0. Child i
// of a member heads the subtree of the members [member, member+size).
type tree struct {
	parent   int // -1 at the root
	size     int // of this member's subtree
	children []subtree
}

type subtree struct{ member, size int }

// binomialTree gives member me's place among size members. Children come largest
// subtree first, which is the order for sending; gather in reverse.
func binomialTree(me, size int) tree {
	t := tree{parent: -1}
	low := bits.Len(uint(size - 1)) // log₂ of the span this member may head
	if me > 0 {
		low = bits.TrailingZeros(uint(me))
		t.parent = me &^ (1 << low)
	}
	t.size = min(1<<low, size-me)
	for k := low - 1; k >= 0; k-- {
		child := me + 1<<k
		if child < size {
			t.children = append(t.children, subtree{child, min(1<<k, size-child)})
		}
	}
	return t
}
