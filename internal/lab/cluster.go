package lab

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
)

// Slurm is a running cluster: see scripts/cluster.sh for what a node is. Its nodes are
// named by index, 0-based.
type Slurm struct {
	Nodes []string // names, c7101 and so on
	Dir   string   // the same directory on all nodes, gone when the test is over

	t      testing.TB
	script string
}

// Users are the two ordinary users of every cluster that root started. Each has a home
// directory that only they can read.
var Users = [2]string{"user1", "user2"}

// Cluster brings up a Slurm of that many nodes with that many cpus each (cpus are claimed,
// not bound: a node may have more than the machine) and takes it down when the test is
// over. Where there is no Slurm or no right to make namespaces the test is skipped, and
// also with -short. conf are further lines of slurm.conf, such as "KillWait=2".
func Cluster(t testing.TB, nodes, cpus int, conf ...string) *Slurm {
	t.Helper()
	if !strings.HasPrefix(t.Name(), "TestCluster") {
		t.Fatalf("%s brings up a cluster: name it TestCluster..., by which make cluster-test finds it and make mpi-test leaves it out", t.Name())
	}
	if testing.Short() {
		t.Skip("a whole cluster is not for -short")
	}
	need.Part(t, "slurm", missing("slurmctld", "slurmd", "srun", "munged", "ip"))
	need.Part(t, "slurm", cannotUnshare())
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: its parent is closed to the cluster's ordinary users.
	dir, err := os.MkdirTemp("", "fisterra-lab.")
	if err != nil {
		t.Fatal(err)
	}
	s := &Slurm{Dir: dir, t: t, script: filepath.Join(root, "scripts", "cluster.sh")}
	up := s.command(context.Background(), "up", strconv.Itoa(nodes), strconv.Itoa(cpus))
	up.Env = append(up.Env, "FISTERRA_LAB_OWNER="+strconv.Itoa(os.Getpid()),
		"FISTERRA_LAB_CONF="+strings.Join(conf, "\n"))
	if r := up.Run(); r.Code != 0 {
		os.RemoveAll(dir)
		t.Fatalf("cluster.sh up: %v", r)
	}
	t.Cleanup(s.down)
	names := s.Exec(context.Background(), "sinfo", "-h", "-N", "-p", "main", "-o", "%N")
	s.Nodes = strings.Fields(names.Stdout)
	if len(s.Nodes) != nodes {
		t.Fatalf("want %d nodes, sinfo says %v", nodes, names)
	}
	return s
}

func (s *Slurm) down() {
	if s.t.Failed() {
		s.t.Logf("%s", s.command(context.Background(), "logs", "15").Run().Stdout)
	}
	if r := s.command(context.Background(), "down").Run(); r.Code != 0 {
		s.t.Errorf("cluster.sh down: %v", r)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		s.t.Errorf("cluster.sh down left %s behind (%v)", s.Dir, err)
	}
}

func (s *Slurm) command(ctx context.Context, args ...string) *Cmd {
	cmd := Command(ctx, s.t, s.script, args...)
	cmd.Env = append(os.Environ(), "FISTERRA_LAB="+s.Dir)
	cmd.Dir = s.Dir
	return cmd
}

// Command prepares a command on the controller, which is also the login node: srun,
// sbatch, mpirun and so on. It starts in Dir.
func (s *Slurm) Command(ctx context.Context, args ...string) *Cmd {
	return s.command(ctx, append([]string{"exec"}, args...)...)
}

// Exec runs a command on the controller to its end.
func (s *Slurm) Exec(ctx context.Context, args ...string) Result {
	return s.Command(ctx, args...).Run()
}

// CommandAs prepares a command on the controller as one of Users. It needs root.
func (s *Slurm) CommandAs(ctx context.Context, user string, args ...string) *Cmd {
	s.t.Helper()
	need.Part(s.t, "slurm", needsRoot("to run as "+user))
	return s.command(ctx, append([]string{"as", user}, args...)...)
}

// As runs a command on the controller as one of Users to its end. It needs root.
func (s *Slurm) As(ctx context.Context, user string, args ...string) Result {
	s.t.Helper()
	return s.CommandAs(ctx, user, args...).Run()
}

// On runs a command inside a node to its end.
func (s *Slurm) On(ctx context.Context, node int, args ...string) Result {
	return s.command(ctx, append([]string{"on", s.Nodes[node]}, args...)...).Run()
}

// Home is the directory of one of Users, the same on all nodes.
func (s *Slurm) Home(user string) string { return filepath.Join(s.Dir, "home", user) }

// TestBinary copies the running test binary to where all nodes see it and returns its path:
// a test that starts ranks of its own runs it there, and all users may.
func (s *Slurm) TestBinary() string {
	s.t.Helper()
	path := filepath.Join(s.Dir, filepath.Base(os.Args[0]))
	text, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(path, text, 0o755)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return path
}

// Crash takes a node's power: it falls silent, and nothing on it runs on.
func (s *Slurm) Crash(node int) { s.t.Helper(); s.must("crash", s.Nodes[node]) }

// Boot gives a node its power back and returns when Slurm has it.
func (s *Slurm) Boot(node int) { s.t.Helper(); s.must("boot", s.Nodes[node]) }

// Unplug pulls both network cables of a node; what runs on it goes on.
func (s *Slurm) Unplug(node int) { s.t.Helper(); s.must("unplug", s.Nodes[node]) }

// Plug puts the cables of a node in again.
func (s *Slurm) Plug(node int) { s.t.Helper(); s.must("plug", s.Nodes[node]) }

// Throttle limits what each node sends through each of its cables, and to itself, to a rate such as "20mbit", until the node
// is booted anew.
func (s *Slurm) Throttle(rate string) { s.t.Helper(); s.must("rate", rate) }

// HideMunge takes munge's default socket away on all nodes; Slurm has its own way to it.
func (s *Slurm) HideMunge() { s.t.Helper(); s.must("munge", "off") }

// ShowMunge puts munge's default socket back.
func (s *Slurm) ShowMunge() { s.t.Helper(); s.must("munge", "on") }

func (s *Slurm) must(args ...string) {
	s.t.Helper()
	if r := s.command(context.Background(), args...).Run(); r.Code != 0 {
		s.t.Fatalf("cluster.sh %s: %v", strings.Join(args, " "), r)
	}
}
