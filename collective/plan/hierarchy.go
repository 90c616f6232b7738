package plan

import "slices"

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
