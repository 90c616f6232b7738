package mpitest

import (
	"context"
	"slices"
	"strings"
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
				if check.Name == "ShrinkTwice" {
					dying = append(dying, 0)
				}
				Processes(t, check.Ranks, "TestLossRank", transport+" "+check.Name, dying...)
			})
		}
	}
}

// TestLossRank is a rank of TestLossesOfProcesses.
func TestLossRank(t *testing.T) {
	transport := func(role string) string { return strings.Fields(role)[0] }
	BeProcess(t, transport, func(ctx context.Context, c *mpi.Comm, role string) error {
		checks := LossChecks()
		i := slices.IndexFunc(checks, func(k LossCheck) bool { return k.Name == strings.Fields(role)[1] })
		return checks[i].Run(ctx, c, Die)
	})
}
