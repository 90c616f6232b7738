package pmi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// asPeer, set to a protocol version, makes the test binary one rank of a job.
const asPeer = "FISTERRA_TEST_PMI_PEER"

func TestMain(m *testing.M) {
	if v := os.Getenv(asPeer); v != "" {
		if err := peer(v); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// version is that of the protocol.
func (c *Client) version() int {
	if _, two := c.protocol.(*protocol2); two {
		return 2
	}
	return 1
}

// peer exchanges a value of several parts with all others and says goodbye.
func peer(version string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	v, err := strconv.Atoi(version)
	if err != nil {
		return err
	}
	c, err := Open(ctx, os.LookupEnv, Config{Version: v})
	if err != nil {
		return err
	}
	valueOf := func(rank int) []byte {
		return bytes.Repeat([]byte{byte(rank), ';', '\n', ' ', 0xff}, 400+rank)
	}
	for round := range 2 {
		key := func(rank int) string { return fmt.Sprintf("round%d-%d", round, rank) }
		if err := c.Put(ctx, key(c.Rank()), valueOf(c.Rank()+round)); err != nil {
			return err
		}
		if err := c.Fence(ctx); err != nil {
			return err
		}
		for rank := range c.Size() {
			got, err := c.Get(ctx, key(rank))
			if err != nil {
				return err
			}
			if !bytes.Equal(got, valueOf(rank+round)) {
				return fmt.Errorf("rank %d of %d: %d bytes from rank %d differ", c.Rank(), c.Size(), len(got), rank)
			}
		}
	}
	if _, err := c.Get(ctx, "nobody-put-this"); !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("a key nobody put: %w", err)
	}
	fmt.Printf("rank %d of %d, PMI-%d, job %q: ok\n", c.Rank(), c.Size(), c.version(), c.JobID())
	return c.Finalize(ctx)
}

// launch runs n peers under a launcher and checks that each rank reported.
func launch(t *testing.T, n int, version int, launcher string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, launcher, append(args, self)...)
	cmd.Env = append(os.Environ(), asPeer+"="+strconv.Itoa(version))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	reported(t, n, version, string(out))
}

// reported checks that each of n ranks said that it is done, by the wanted version if there is one.
func reported(t *testing.T, n, version int, out string) {
	t.Helper()
	for rank := range n {
		if !strings.Contains(out, fmt.Sprintf("rank %d of %d, PMI-", rank, n)) {
			t.Errorf("rank %d of %d did not report\n%s", rank, n, out)
		}
	}
	if version > 0 && strings.Count(out, fmt.Sprintf("PMI-%d", version)) != n {
		t.Errorf("not all speak PMI-%d\n%s", version, out)
	}
	t.Logf("%s", out)
}

func TestUnderHydra(t *testing.T) {
	hydra := need.Program(t, "mpich", "mpiexec.hydra")
	for _, c := range []struct {
		name    string
		version int
		args    []string
	}{
		{"by itself", 0, nil},
		{"PMI-1", 1, nil},
		{"PMI-2", 2, nil},
		{"over a port", 0, []string{"-pmi-port"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			launch(t, 5, c.version, hydra, append(c.args, "-n", "5")...)
		})
	}
}

// Under srun of a running Slurm; --mpi=pmi2 serves both versions.
func TestClusterSrun(t *testing.T) {
	cluster := lab.Cluster(t, 2, 4)
	binary := cluster.TestBinary()
	for _, version := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("version %d", version), func(t *testing.T) {
			r := cluster.Exec(t.Context(), "env", asPeer+"="+strconv.Itoa(version), "srun", "--mpi=pmi2", "-N2", "-n4", "--ntasks-per-node=2", binary)
			if r.Code != 0 || r.Err != nil {
				t.Fatal(r)
			}
			reported(t, 4, version, r.Stdout)
		})
	}
}
