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
