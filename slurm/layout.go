package slurm

import "fmt"

// Layout says how many tasks of a step lie on which node. Position p counts tasks
// node by node: node 0 local 0, node 0 local 1, ..., node 1 local 0, ... Every task
// can compute every position; which rank sits there depends on the distribution.
// With block distribution position and rank are the same.
type Layout struct {
	Nodes []string // in Slurm's order
	Tasks []int    // per node, each at least 1
	first []int    // position of each node's local 0, and the size at the end
}

// NewLayout makes a layout of tasks[i] tasks on nodes[i]. The slices are kept.
// Different lengths are ErrInconsistent, a node named twice is ErrRepeated.
func NewLayout(nodes []string, tasks []int) (*Layout, error) {
	if len(nodes) != len(tasks) || len(nodes) == 0 {
		return nil, &Error{Err: ErrInconsistent, Detail: fmt.Sprintf("%d nodes, but tasks per node are given for %d", len(nodes), len(tasks))}
	}
	l := &Layout{Nodes: nodes, Tasks: tasks, first: make([]int, len(nodes)+1)}
	seen := make(map[string]int, len(nodes))
	for i, node := range nodes {
		if k, ok := seen[node]; ok {
			return nil, &Error{Value: node, Err: ErrRepeated, Detail: fmt.Sprintf("the same host as node %d and node %d: two tasks would get one address", k, i)}
		}
		seen[node] = i
		if tasks[i] < 1 || tasks[i] > maxTasks-l.first[i] {
			return nil, &Error{Err: ErrRange, Detail: fmt.Sprintf("%d tasks on node %d (%s)", tasks[i], i, node)}
		}
		l.first[i+1] = l.first[i] + tasks[i]
	}
	return l, nil
}

// Size is the number of tasks.
func (l *Layout) Size() int { return l.first[len(l.Nodes)] }

// Position is the place of a task given by node index and local id.
func (l *Layout) Position(node, local int) (int, error) {
	if node < 0 || node >= len(l.Nodes) {
		return 0, &Error{Err: ErrRange, Detail: fmt.Sprintf("node %d of %d nodes", node, len(l.Nodes))}
	}
	if local < 0 || local >= l.Tasks[node] {
		return 0, &Error{Err: ErrRange, Detail: fmt.Sprintf("local id %d on node %d (%s), which has %d tasks", local, node, l.Nodes[node], l.Tasks[node])}
	}
	return l.first[node] + local, nil
}

// Place is the inverse of Position. Cost: logarithmic in the number of nodes.
func (l *Layout) Place(position int) (node, local int, err error) {
	if position < 0 || position >= l.Size() {
		return 0, 0, &Error{Err: ErrRange, Detail: fmt.Sprintf("position %d of %d tasks", position, l.Size())}
	}
	lo, hi := 0, len(l.Nodes) // first[lo] <= position < first[hi]
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; l.first[mid] <= position {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, position - l.first[lo], nil
}

// Table maps ranks to positions and back. It starts empty and is filled with what
// tasks know of themselves: each knows its own place, and by SLURM_GTIDS those of
// its node; the rest comes by exchange.
type Table struct {
	layout   *Layout
	position []int // by rank, -1 unknown
	rank     []int // by position, -1 unknown
}

// NewTable makes an empty table for a layout.
func NewTable(l *Layout) *Table {
	t := &Table{layout: l, position: make([]int, l.Size()), rank: make([]int, l.Size())}
	for i := range t.rank {
		t.position[i], t.rank[i] = -1, -1
	}
	return t
}

// Set records that a rank is at a position. Saying the same twice is fine; a rank
// at two positions or two ranks at one is ErrRepeated.
func (t *Table) Set(rank, position int) error {
	n := len(t.rank)
	if rank < 0 || rank >= n || position < 0 || position >= n {
		return &Error{Err: ErrRange, Detail: fmt.Sprintf("rank %d at position %d, but there are %d tasks", rank, position, n)}
	}
	if p := t.position[rank]; p >= 0 && p != position {
		return &Error{Err: ErrRepeated, Detail: fmt.Sprintf("rank %d at %s and at %s", rank, t.where(p), t.where(position))}
	}
	if r := t.rank[position]; r >= 0 && r != rank {
		return &Error{Err: ErrRepeated, Detail: fmt.Sprintf("rank %d and rank %d both at %s", r, rank, t.where(position))}
	}
	t.position[rank], t.rank[position] = position, rank
	return nil
}

// SetNode records the ranks of a node in the order of their local ids.
func (t *Table) SetNode(node int, ranks []int) error {
	for local, rank := range ranks {
		p, err := t.layout.Position(node, local)
		if err != nil {
			return err
		}
		if err := t.Set(rank, p); err != nil {
			return err
		}
	}
	return nil
}

// Position of a rank; ok is false while it is not known.
func (t *Table) Position(rank int) (position int, ok bool) {
	if rank < 0 || rank >= len(t.position) || t.position[rank] < 0 {
		return 0, false
	}
	return t.position[rank], true
}

// Rank at a position; ok is false while it is not known.
func (t *Table) Rank(position int) (rank int, ok bool) {
	if position < 0 || position >= len(t.rank) || t.rank[position] < 0 {
		return 0, false
	}
	return t.rank[position], true
}

// Complete reports the ranks whose positions are not known. Since Set refuses
// repeats, a complete table has every position exactly once.
func (t *Table) Complete() (missing []int, ok bool) {
	for rank, p := range t.position {
		if p < 0 {
			missing = append(missing, rank)
		}
	}
	return missing, missing == nil
}

// Verify compares with what a distribution predicts and names the first rank
// that differs. Ranks that either table does not know are passed over.
func (t *Table) Verify(predicted *Table) error {
	if len(t.rank) != len(predicted.rank) {
		return &Error{Err: ErrInconsistent, Detail: fmt.Sprintf("tables of %d and %d ranks", len(t.rank), len(predicted.rank))}
	}
	for rank, p := range t.position {
		if q := predicted.position[rank]; p >= 0 && q >= 0 && p != q {
			return &Error{Err: ErrInconsistent, Detail: fmt.Sprintf("rank %d is at %s, but its distribution puts it at %s", rank, t.where(p), t.where(q))}
		}
	}
	return nil
}

func (t *Table) where(position int) string {
	node, local, err := t.layout.Place(position)
	if err != nil {
		return fmt.Sprintf("position %d", position)
	}
	return fmt.Sprintf("position %d (node %d %s, local id %d)", position, node, t.layout.Nodes[node], local)
}
