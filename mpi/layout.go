package mpi

import (
	"slices"

	"github.com/fisterra-hpc/fisterra/slurm"
)

// Layout is the world's ranks by node and local id, from which roles follow:
// node by node in the order of positions.
func (w *World) Layout() (*slurm.Layout, error) {
	order := w.positions()
	var nodes []string
	var tasks []int
	for _, rank := range order {
		host := w.members[rank].Host
		if n := len(nodes); n > 0 && nodes[n-1] == host {
			tasks[n-1]++
			continue
		}
		nodes, tasks = append(nodes, host), append(tasks, 1)
	}
	return slurm.NewLayout(nodes, tasks)
}

// positions lists the ranks by position.
func (w *World) positions() []int {
	order := make([]int, len(w.members))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return w.members[a].Position - w.members[b].Position })
	return order
}
