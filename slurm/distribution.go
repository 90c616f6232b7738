package slurm

import "strings"

// Distribution is how srun dealt the ranks over the nodes.
type Distribution struct {
	// Kind is "block", "cyclic", "plane", "arbitrary", or what else Slurm wrote;
	// "" when SLURM_DISTRIBUTION is not set, as under a bare srun.
	Kind  string
	Plane int // tasks per turn of plane, 0 when not told
}

// ParseDistribution reads SLURM_DISTRIBUTION ("block", "cyclic:block,NoPack",
// "plane=4"). Only the first part, the distribution over nodes, matters here.
func ParseDistribution(text string) Distribution {
	kind := strings.ToLower(text)
	if i := strings.IndexAny(kind, ":,"); i >= 0 {
		kind = kind[:i]
	}
	kind, size, _ := strings.Cut(kind, "=")
	n, err := parseCount(size)
	if err != nil {
		n = 0
	}
	return Distribution{Kind: kind, Plane: n}
}

// Table deals the ranks of a layout out as Slurm does. ok is false where the
// distribution does not determine it (arbitrary, plane of unknown size, unknown).
func (d Distribution) Table(l *Layout) (t *Table, ok bool) {
	turn := 0 // tasks a node takes before the next one's turn
	switch {
	case d.Kind == "block":
		turn = l.Size()
	case d.Kind == "cyclic":
		turn = 1
	case d.Kind == "plane" && d.Plane > 0:
		turn = d.Plane
	default:
		return nil, false
	}
	t = NewTable(l)
	used := make([]int, len(l.Nodes))
	open := make([]int, len(l.Nodes)) // nodes with room left, in order
	for i := range open {
		open[i] = i
	}
	for rank := 0; rank < l.Size(); {
		left := open[:0]
		for _, node := range open {
			for range min(turn, l.Tasks[node]-used[node]) {
				p := l.first[node] + used[node]
				t.position[rank], t.rank[p] = p, rank
				used[node]++
				rank++
			}
			if used[node] < l.Tasks[node] {
				left = append(left, node)
			}
		}
		open = left
	}
	return t, true
}

// Known is the table of what this task can tell alone: its own place, its node's
// by SLURM_GTIDS, and all of it where the distribution determines the rest. It is for
// tasks that do not connect; ranks of package mpi tell each other their places.
//
// A prediction that contradicts the task's own variables is dropped: in a step
// over several groups of a heterogeneous job SLURM_DISTRIBUTION holds within each
// group, not over all.
func (j *Job) Known() (*Table, error) {
	t := NewTable(j.Layout)
	if err := t.Set(j.Rank, j.Position()); err != nil {
		return nil, err
	}
	if j.GTIDs != nil {
		if err := t.SetNode(j.Node, j.GTIDs); err != nil {
			return nil, from("SLURM_GTIDS", err)
		}
	}
	if p, ok := j.Predicted(); ok && t.Verify(p) == nil {
		return p, nil
	}
	return t, nil
}

// Predicted is the table that SLURM_DISTRIBUTION determines for this step. ok is
// false where it determines none.
func (j *Job) Predicted() (t *Table, ok bool) {
	if j.Het != nil && len(j.Het.Groups) > 1 {
		return nil, false
	}
	return j.Distribution.Table(j.Layout)
}
