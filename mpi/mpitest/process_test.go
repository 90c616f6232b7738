package mpitest

import (
	"context"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// TestLossesOfProcesses runs the checks of losses among processes, whose last rank is killed
// by SIGKILL: what the survivors see comes from the kernel.
func TestLossesOfProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, check := range LossChecks() {
			t.Run(transport+"/"+check.Name, func(t *testing.T) {
				dying := []int{check.Ranks - 1}
				if check.FirstDies {
					dying = append(dying, 0)
				}
				Processes(t, check.Ranks, transport, "TestLossRank", check.Name, dying...)
			})
		}
	}
}

// TestLossRank is a rank of TestLossesOfProcesses.
func TestLossRank(t *testing.T) {
	BeProcess(t, func(ctx context.Context, c *mpi.Comm, name string) error {
		checks := LossChecks()
		i := slices.IndexFunc(checks, func(k LossCheck) bool { return k.Name == name })
		return checks[i].Run(ctx, c, Die)
	})
}
