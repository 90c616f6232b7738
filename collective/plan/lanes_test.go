package plan

import "testing"

// TestLanesWhereCheapest: on a cluster the lanes are taken for short blocks,
// where they save messages, and not for long ones, where they copy.
func TestLanesWhereCheapest(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		bytes int // of all blocks
		want  string
	}{
		{ReduceScatter, 8 << 10, "node+lanes"},
		{ReduceScatter, 1 << 20, "node+lanes"},
		{Allgather, 64 << 10, "node+lanes"},
		{Allgather, 1 << 20, "node+lanes"},
		{Alltoall, 8 << 10, "node+lanes"},
		{Alltoall, 16 << 20, "linear"},
	} {
		for _, cyclic := range []bool{false, true} {
			p := &Problem{Kind: c.kind, Size: 264, Count: max(1, c.bytes/4/264), ElemBytes: 4, Nodes: hosts(264, 24, cyclic)}
			if best := Rank(p, cluster())[0]; best.Name != c.want {
				t.Errorf("%v of %d B, cyclic %v: %s, want %s", c.kind, c.bytes, cyclic, best.Name, c.want)
			}
		}
	}
}

// cluster is a model of ranks on nodes of two processors and a fast network.
func cluster() *Model {
	link := func(alpha, beta float64) Link {
		return Link{OneWay: Linear(alpha, beta), Exchange: Linear(alpha, beta)}
	}
	m := &Model{
		Name: "cluster", Host: link(0.4e-6, 1/4.5e9), Net: link(1.2e-6, 1/6.2e9),
		Combine: Linear(0, 1/10e9), Copy: Linear(0, 1/20e9), Overhead: 0.25e-6,
	}
	m.Net.Gap = 1 / 6.2e9
	return m
}
