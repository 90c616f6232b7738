package mpi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// onCluster brings up a Slurm cluster and puts this test binary where all nodes see it.
func onCluster(t *testing.T, nodes int) (*lab.Slurm, string) {
	cluster := lab.Cluster(t, nodes, 4)
	return cluster, cluster.TestBinary()
}

// runStep runs ranks that meet and say goodbye in a step and returns what they said.
func runStep(t *testing.T, c *lab.Slurm, binary, options string, args ...string) lab.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	srun := append([]string{"env", rankVariable + "=order=bye " + options, "srun"}, args...)
	return c.Exec(ctx, append(srun, binary, "-test.run=^TestBootstrapRank$")...)
}

// Ranks meet in a step however srun deals them out and whichever process
// manager it offers, and their positions are node by node.
func TestClusterBootstrap(t *testing.T) {
	c, binary := onCluster(t, 4)
	for _, s := range []struct {
		name  string
		args  []string
		ranks []int // of each node
	}{
		{"block", []string{"-N4", "-n8", "--ntasks-per-node=2", "--distribution=block"}, []int{2, 2, 2, 2}},
		{"cyclic", []string{"-N4", "-n8", "--ntasks-per-node=2", "--distribution=cyclic"}, []int{2, 2, 2, 2}},
		{"plane", []string{"-N4", "-n8", "--distribution=plane=2"}, []int{4, 2, 1, 1}}, // what CPUs are left is filled node by node
		{"one node", []string{"-N1", "-n4"}, []int{4}},
		{"pmi2", []string{"--mpi=pmi2", "-N4", "-n8", "--ntasks-per-node=2"}, []int{2, 2, 2, 2}},
		{"pmi2 cyclic", []string{"--mpi=pmi2", "-N4", "-n8", "--ntasks-per-node=2", "--distribution=cyclic"}, []int{2, 2, 2, 2}},
		{"pmix", []string{"--mpi=pmix", "-N4", "-n8", "--ntasks-per-node=2"}, []int{2, 2, 2, 2}},
		{"reserved ports", []string{"--resv-ports=2", "-N2", "-n4", "--ntasks-per-node=2"}, []int{2, 2}},
	} {
		t.Run(s.name, func(t *testing.T) {
			r := runStep(t, c, binary, "", s.args...)
			if r.Code != 0 {
				t.Fatal(r)
			}
			want := 0
			for _, n := range s.ranks {
				want += n
			}
			byPosition := make([]string, want)
			for line := range strings.Lines(r.Stdout) {
				var rank, position int
				var byRank string
				if n, _ := fmt.Sscanf(line, "ready %d %d %s", &rank, &position, &byRank); n == 3 {
					byPosition[position] = strings.Split(byRank, ",")[rank]
				}
			}
			// Slurm may take any nodes: the last step's are not free at once.
			var ranks []int
			for i, host := range byPosition {
				if i == 0 || host != byPosition[i-1] {
					ranks = append(ranks, 0)
				}
				ranks[len(ranks)-1]++
			}
			if !slices.Equal(ranks, s.ranks) || !slices.IsSorted(byPosition) {
				t.Errorf("hosts by position %s, want %v ranks of each in order\n%v", byPosition, s.ranks, r)
			}
			if n := strings.Count(r.Stdout, "parted <nil>"); n != want || strings.Contains(r.Stdout, "lost") {
				t.Errorf("%d of %d parted well: %v", n, want, r)
			}
		})
	}
}

// Without munge and without a directory for keys, ranks meet through their step's PMIx server, wherever position 0 is.
func TestClusterBootstrapByPMIx(t *testing.T) {
	c, binary := onCluster(t, 2)
	c.HideMunge()
	for _, s := range []struct {
		ranks int
		first int // position of rank 0
		args  []string
	}{
		{4, 0, []string{"-N2", "-n4", "--ntasks-per-node=2"}},
		{3, 1, []string{"-N2", "-n3", "--distribution=arbitrary", "--nodelist=" + c.Nodes[1] + "," + c.Nodes[0] + "," + c.Nodes[1]}},
	} {
		// slurm.conf would lead to the socket that Slurm itself uses.
		r := runStep(t, c, binary, "", append(append([]string{"--mpi=pmix"}, s.args...), "env", "-u", "SLURM_CONF")...)
		if n := strings.Count(r.Stdout, "parted <nil>"); r.Code != 0 || n != s.ranks || !strings.Contains(r.Stdout, fmt.Sprintf("ready 0 %d ", s.first)) {
			t.Errorf("%v: %d of %d parted well: %v", s.args, n, s.ranks, r)
		}
	}
}

// Ranks of two nodes use Open MPI where both have an RDMA device, after they have agreed on it
// beside the process manager, and their own transports where one has not.
func TestClusterAgreesOnTheTransport(t *testing.T) {
	why := ""
	if _, err := clib.Open("libmpi.so.40"); err != nil {
		why = err.Error()
	}
	need.Part(t, "openmpi", why)
	c, binary := onCluster(t, 2)
	able, bare := rdmaHost(t), t.TempDir()
	for _, s := range []struct {
		name, second string // the root of the second node's devices
		transports   []string
	}{
		{"both", able, []string{"joined 0 mpi", "joined 1 mpi", "joined 2 mpi", "joined 3 mpi"}},
		{"one", bare, []string{"joined 0 shm", "joined 1 tcp", "joined 2 shm", "joined 3 tcp"}}, // to the next rank
	} {
		t.Run(s.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			task := fmt.Sprintf(`root=%s; [ "$SLURM_NODEID" = 0 ] || root=%s; %s=$root exec %s -test.run='^TestChoosingRank$'`, able, s.second, rootVariable, binary)
			r := c.Exec(ctx, "env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
				"srun", "--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2", "--distribution=block", "sh", "-c", task)
			for rank, want := range s.transports {
				if r.Code != 0 || !strings.Contains(r.Stdout, want+"\n") || !strings.Contains(r.Stdout, fmt.Sprintf("parted %d <nil>", rank)) {
					t.Fatalf("want %q: %v", want, r)
				}
			}
			// MPI's end of MPI_Init is no fence under Slurm's PMIx: another has to be passed before the first message.
			if s.name == "both" && strings.Count(r.Stderr, `msg="all ranks are out of MPI_Init" waited=`) != len(s.transports) {
				t.Errorf("not every rank has waited for the others: %v", r)
			}
		})
	}
}

// A batch shell is no rank.
func TestClusterBatchShellRefused(t *testing.T) {
	c, binary := onCluster(t, 1)
	ctx := context.Background()
	out := filepath.Join(c.Dir, "batch.out")
	script := fmt.Sprintf("#!/bin/sh\n%s='' exec %s -test.run='^TestBootstrapRank$'\n", rankVariable, binary)
	id := c.Submit(ctx, script, "-N1", "-n2", "-o", out)
	c.Await(ctx, id, "over", lab.Job.Over)
	text, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(text), "srun") || !strings.Contains(string(text), "failed") {
		t.Errorf("%v: %s", err, text)
	}
}
