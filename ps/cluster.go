package ps

import (
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/slurm"
)

// Cluster says which ranks of a communicator are servers and which workers,
// each in the order of their task index. Worker 0 is the chief.
type Cluster struct {
	Servers []int
	Workers []int
}

// NewCluster takes the role of each rank. The chief (or master) becomes
// worker 0, the other workers follow in the order of their ranks.
func NewCluster(roles []slurm.Role) (Cluster, error) {
	var c Cluster
	for rank, role := range roles {
		switch role {
		case slurm.PS:
			c.Servers = append(c.Servers, rank)
		case slurm.Worker:
			c.Workers = append(c.Workers, rank)
		case slurm.Chief, slurm.Master:
			c.Workers = slices.Insert(c.Workers, 0, rank)
		default:
			return Cluster{}, configError("rank %d has the role %q, which takes no part in training; roles are ps, worker and chief", rank, role)
		}
	}
	return c, c.Validate(len(roles))
}

// ClusterOf takes the role of each position of a world. A position is not a rank where ranks are dealt out to nodes
// in another order. Servers and workers are numbered by position, as in the cluster description of package slurm.
func ClusterOf(w *mpi.World, roles slurm.Roles) (Cluster, error) {
	if err := roles.CheckSize(w.Size()); err != nil {
		return Cluster{}, err
	}
	c, err := NewCluster(roles)
	if err != nil {
		return c, err
	}
	rankAt := make([]int, w.Size()) // by position
	for rank := range rankAt {
		rankAt[w.Position(rank)] = rank
	}
	for _, list := range [][]int{c.Servers, c.Workers} {
		for i, position := range list {
			list[i] = rankAt[position]
		}
	}
	return c, nil
}

// Counts makes the first servers ranks servers and the rest workers.
func Counts(servers, workers int) Cluster {
	var c Cluster
	for rank := range servers + workers {
		if rank < servers {
			c.Servers = append(c.Servers, rank)
		} else {
			c.Workers = append(c.Workers, rank)
		}
	}
	return c
}

// Validate says what does not fit a communicator of size ranks: each rank has
// one role, and there is at least one worker.
func (c Cluster) Validate(size int) error {
	if len(c.Workers) == 0 {
		return configError("no worker among %d ranks", size)
	}
	if n := len(c.Servers) + len(c.Workers); n != size {
		return configError("%d ps and %d workers are %d ranks, but there are %d", len(c.Servers), len(c.Workers), n, size)
	}
	seen := make([]bool, size)
	for _, rank := range slices.Concat(c.Servers, c.Workers) {
		if rank < 0 || rank >= size || seen[rank] {
			return configError("rank %d of %d is outside or has two roles", rank, size)
		}
		seen[rank] = true
	}
	return nil
}

// Role is what a rank is called: "ps 0", "worker 1".
func (c Cluster) Role(rank int) string {
	if i := slices.Index(c.Servers, rank); i >= 0 {
		return fmt.Sprintf("ps %d", i)
	}
	if i := slices.Index(c.Workers, rank); i >= 0 {
		return fmt.Sprintf("worker %d", i)
	}
	return "no role"
}
