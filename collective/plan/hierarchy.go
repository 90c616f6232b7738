package plan

import "slices"

// Plans in two levels are named node+ something. Gather and scatter have none: where the ranks of
// a node follow one another, the subtrees of a binomial tree are within nodes already, and
// the link of the root's node carries the same bytes in any order. Simulated on 1,024 ranks of FDR, binomial takes 1.08
// times the lower bound for 64 KiB and 1.01 times for 16 MiB. For alltoall with counts see alltoallLanes.
// Scans have them for nodes of consecutive ranks only, since a node must have a single result that the next node's can be
// combined with.

// hierarchy splits the ranks by host: this rank's node as a group whose
// member 0 is the node's leader, and the leaders as a group whose member 0 is
// the leader of root's node. Root leads its node; elsewhere the first rank does.
func (p *Problem) hierarchy(root int) (local, leaders group, isLeader bool) {
	rootNode := int(p.Nodes.Of[root])
	node := int(p.Nodes.Of[p.Rank])
	lead := 0
	if node == rootNode {
		lead = indexOf(p.Nodes.Members[node], root)
	}
	local = among(p.Nodes.Members[node], indexOf(p.Nodes.Members[node], p.Rank)).from(lead)

	leaders = group{me: node, size: len(p.Nodes.Members), to: func(m int) int {
		if m == rootNode {
			return root
		}
		return int(p.Nodes.Members[m][0])
	}}
	return local, leaders.from(rootNode), local.me == 0
}

func indexOf(ranks []int32, rank int) int {
	i, _ := slices.BinarySearch(ranks, int32(rank))
	return i
}
