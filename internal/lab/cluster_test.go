package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// onDirectory runs cluster.sh as if dir were a cluster's.
func onDirectory(t *testing.T, dir string, args ...string) Result {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := Command(t.Context(), t, filepath.Join(root, "scripts", "cluster.sh"), args...)
	cmd.Env = append(os.Environ(), "FISTERRA_LAB="+dir)
	return cmd.Run()
}

func TestScriptRemovesOnlyClusters(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "thesis")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"up", "down"} {
		if r := onDirectory(t, dir, command); r.Code != 1 || !strings.Contains(r.Stderr, dir) {
			t.Errorf("%s in a directory of something else: %v", command, r)
		}
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("after %s: %v", command, err)
		}
	}
}

func TestScriptRefusesNetworksThatAreNot(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{os.WriteFile(filepath.Join(dir, ".fisterra-lab"), nil, 0o644), os.Mkdir(filepath.Join(dir, "state.c7101"), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := onDirectory(t, dir, "unplug", "c7101", "eth1"); r.Code != 1 || !strings.Contains(r.Stderr, "no network 'eth1'") {
		t.Error(r)
	}
}

// A cluster that is told to end while it comes up, here one that never does, leaves no process and no file.
func TestClusterThatIsNotUpLeavesNothing(t *testing.T) {
	Cluster(t, 1, 1) // skips where there is no Slurm
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	up := Command(t.Context(), t, filepath.Join(root, "scripts", "cluster.sh"), "up", "1", "1")
	up.Env = append(os.Environ(), "FISTERRA_LAB="+dir, "FISTERRA_LAB_CONF=NoSuchKey=1")
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	var owner int
	limited, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := AwaitFiles(limited, dir, func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "nodes", "c7101"))
		_, err := fmt.Sscan(string(text), &owner)
		return err == nil
	}); err != nil {
		t.Error(err)
	}
	if err := up.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := up.Wait(); err == nil || up.ProcessState.ExitCode() != 143 {
		t.Errorf("cluster.sh up: %v, want exit status 143", err)
	}
	if err := AwaitEnd(owner, time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left behind (%v)", dir, err)
	}
}

func TestClusterRunsStepsOnItsNodes(t *testing.T) {
	s := Cluster(t, 3, 2)
	ctx := t.Context()
	r := s.Exec(ctx, "srun", "-N3", "--ntasks-per-node=2", "sh", "-c", "hostname; ip -4 -o addr show ib0")
	if r.Code != 0 {
		t.Fatal(r)
	}
	for i, node := range s.Nodes {
		if got := strings.Count(r.Stdout, node+"\n"); got != 2 {
			t.Errorf("%d tasks on %s, want 2: %v", got, node, r)
		}
		if address := fmt.Sprintf("172.28.71.%d/24", i+1); strings.Count(r.Stdout, address) != 2 {
			t.Errorf("no ib0 with %s: %v", address, r)
		}
	}
	if r := s.Exec(ctx, "srun", "-N1", "sh", "-c", "exit 7"); r.Code != 7 {
		t.Errorf("srun of exit 7: %v", r)
	}
	// What a command of one node holds in its name spaces no other node sees.
	if r := s.On(ctx, 0, "sh", "-c", "echo x >/dev/shm/mine"); r.Code != 0 {
		t.Error(r)
	}
	if r := s.On(ctx, 1, "test", "-e", "/dev/shm/mine"); r.Code != 1 {
		t.Errorf("/dev/shm of %s is that of %s: %v", s.Nodes[1], s.Nodes[0], r)
	}
}

func TestClusterLosesPowerAndCables(t *testing.T) {
	s := Cluster(t, 2, 2)
	ctx := t.Context()
	reach := func() int {
		return s.On(ctx, 0, "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/"+s.Nodes[1]+"/6818").Code
	}
	cards := func() string { return s.On(ctx, 1, "sh", "-c", "ip -o link show eth0; ip -o link show ib0").Stdout }
	card := regexp.MustCompile(`link/ether \S+`)
	before := card.FindAllString(cards(), -1)
	steps := []struct {
		name string
		do   func()
		want bool
	}{
		{"at first", func() {}, true},
		{"unplugged", func() { s.Unplug(1) }, false},
		{"plugged in again", func() { s.Plug(1) }, true},
		{"without power", func() { s.Crash(1) }, false},
		{"booted", func() { s.Boot(1) }, true},
	}
	for _, step := range steps {
		step.do()
		code := reach()
		for try := 0; step.want && code != 0 && try < 60; try++ { // neighbours have to be found again
			code = reach()
		}
		if (code == 0) != step.want {
			t.Errorf("%s: connecting to the other node's slurmd exits %d", step.name, code)
		}
	}
	if after := card.FindAllString(cards(), -1); len(before) != 2 || !slices.Equal(after, before) {
		t.Errorf("the cards of the node were %v, and are %v after the boot", before, after)
	}
	if r := s.Exec(ctx, "srun", "-N2", "hostname"); r.Code != 0 || len(strings.Fields(r.Stdout)) != 2 {
		t.Errorf("a step over both nodes after the boot: %v", r)
	}
}

func TestClusterHasTwoUsers(t *testing.T) {
	s := Cluster(t, 1, 4)
	ctx := t.Context()
	for i, user := range Users {
		r := s.As(ctx, user, "srun", "sh", "-c", "id -un; echo secret >$HOME/key; munge -n | unmunge | grep ^UID")
		if want := fmt.Sprintf("(%d)", 20001+i); r.Code != 0 || !strings.HasPrefix(r.Stdout, user+"\n") || !strings.Contains(r.Stdout, want) {
			t.Errorf("a step of %s: %v", user, r)
		}
	}
	if r := s.As(ctx, Users[1], "srun", "cat", s.Home(Users[0])+"/key"); r.Code == 0 {
		t.Errorf("%s reads what is %s's: %v", Users[1], Users[0], r)
	}
	s.HideMunge()
	if r := s.Exec(ctx, "srun", "munge", "-n"); r.Code == 0 {
		t.Errorf("munge answers although it is hidden: %v", r)
	}
	s.ShowMunge()
	if r := s.Exec(ctx, "srun", "munge", "-n"); r.Code != 0 {
		t.Errorf("munge does not answer: %v", r)
	}
}

func TestClusterJobs(t *testing.T) {
	s := Cluster(t, 2, 2, "KillWait=2")
	ctx := t.Context()
	done := s.Submit(ctx, "#!/bin/sh\nsrun -N2 hostname >$PWD/hosts\n", "-N2", "-o", "/dev/null")
	job := s.Await(ctx, done, "over", Job.Over)
	if job.State() != "COMPLETED" {
		t.Errorf("job: %v", job)
	}
	hosts, err := os.ReadFile(s.Dir + "/hosts")
	if got := strings.Fields(string(hosts)); err != nil || len(got) != 2 {
		t.Errorf("hosts of the job: %q %v", hosts, err)
	} else if slices.Sort(got); !slices.Equal(got, s.Nodes) {
		t.Errorf("hosts of the job: %v, want %v", got, s.Nodes)
	}
	long := s.Submit(ctx, "", "-N1", "-o", "/dev/null", "--wrap", "sleep 1000")
	s.Await(ctx, long, "running", func(j Job) bool { return j.State() == "RUNNING" })
	if r := s.Exec(ctx, "scancel", long); r.Code != 0 {
		t.Error(r)
	}
	if job := s.Await(ctx, long, "over", Job.Over); job.State() != "CANCELLED" {
		t.Errorf("cancelled job: %v", job)
	}
}

func TestClusterCommandEndsWithItsDeadline(t *testing.T) {
	s := Cluster(t, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	runs := make(chan error, 1)
	go func() {
		limited, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		runs <- AwaitFiles(limited, s.Dir, func() bool {
			_, err := os.Stat(filepath.Join(s.Dir, "runs"))
			return err == nil
		})
		cancel()
	}()
	if r := s.Exec(ctx, "srun", "sh", "-c", `: >"$0/runs"; exec sleep 1000`, s.Dir); r.Code != 124 {
		t.Errorf("srun beyond its deadline: %v", r)
	}
	if err := <-runs; err != nil {
		t.Error(err)
	}
	// The step ends too: its one cpu is free for the next.
	if r := s.Exec(t.Context(), "srun", "hostname"); r.Code != 0 {
		t.Errorf("the next step: %v", r)
	}
}
