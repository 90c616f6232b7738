package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// TestClusterTwoUsers: two users' jobs share a node, and neither can join, read
// or stop the other's.
func TestClusterTwoUsers(t *testing.T) {
	t.Parallel()
	lab.Fisterra(t)
	s := lab.Cluster(t, 1, 12) // room for both jobs and what one tries against the other
	mine, other := lab.Users[0], lab.Users[1]
	node := s.Nodes[0]
	on := words("srun -p shared --nodelist", node)
	start := func(user string) *step {
		dir := filepath.Join(s.Home(user), "out")
		return awaitStep(t, s, dir, s.CommandAs(within(t, 100*time.Second), user, words(on, "-n4 --kill-on-bad-exit=0 --wait=0", lab.Fisterra(t),
			"train --checkpoint-every 25 --checkpoint", dir+"/state", "--out", dir, endless)...))
	}
	a, b := start(mine), start(other)

	t.Run("read", func(t *testing.T) {
		for _, pid := range a.pids {
			for _, file := range []string{"environ", "mem", "maps", "fd/0"} {
				if r := s.As(t.Context(), other, words(on, "head -c1", fmt.Sprintf("/proc/%d/%s", pid, file))...); r.Code == 0 {
					t.Errorf("%s reads /proc/%d/%s of %s: %v", other, pid, file, mine, r)
				}
			}
			break // one stands for all; each costs a step
		}
		r := s.As(t.Context(), other, words(on, "find /dev/shm /tmp -user", mine, "-type f -readable")...)
		if strings.TrimSpace(r.Stdout) != "" {
			t.Errorf("%s can read files of %s: %v", other, mine, r)
		}
	})
	t.Run("stop", func(t *testing.T) {
		if r := s.As(t.Context(), other, words(on, "kill -KILL", fmt.Sprint(a.pids["worker0"]))...); r.Code == 0 {
			t.Errorf("%s kills a process of %s: %v", other, mine, r)
		}
		r := s.As(t.Context(), mine, "squeue", "-h", "--me", "-o", "%A")
		if id := strings.TrimSpace(r.Stdout); id == "" {
			t.Errorf("no job of %s: %v", mine, r)
		} else if r := s.As(t.Context(), other, "scancel", id); r.Code == 0 {
			t.Errorf("%s cancels job %s of %s: %v", other, id, mine, r)
		}
	})
	for name, x := range map[string]*step{mine: a, other: b} {
		before := x.saves()
		eventually(t, 20*time.Second, "the run of "+name+" goes on", x.dir, func() bool { return x.saves() > before && x.running() }, x.state)
		for _, role := range stepRoles {
			x.signal(role, "USR1")
		}
		if code := x.wait(20 * time.Second); code != 128+10 || strings.Contains(x.state(), "rank lost") {
			t.Errorf("%s: exit code %d\n%s", name, code, x.state())
		}
		x.gone(stepRoles...)
	}
}

// TestClusterStranger: another user who knows all about a job that is starting
// presents himself as a rank that it waits for, and is turned away.
func TestClusterStranger(t *testing.T) {
	s := onCluster(t)
	mine, other := lab.Users[0], lab.Users[1]
	home := s.Home(mine)
	on := words("srun -p shared --nodelist", s.Nodes[0])
	// Rank 1 comes only when it is let. The environment of rank 0 is what the other gets to know.
	script := `env | grep '^SLURM' >"$HOME/env-$SLURM_PROCID" && mv "$HOME/env-$SLURM_PROCID" "$HOME/env.$SLURM_PROCID" # all of it or nothing
[ "$SLURM_PROCID" = 0 ] || until [ -e "$HOME/let" ]; do sleep 0.05; done
exec "$0" "$@"`
	cmd := s.CommandAs(within(t, 80*time.Second), mine, words(on, "-n2 bash -c", []string{script}, lab.Fisterra(t), "train --ps 1 --workers 1 --epochs 1 --json")...)
	out := newOutput()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() { ended <- exitCode(cmd.Wait()) }()
	eventually(t, 20*time.Second, "rank 1 waits", home, func() bool { return fileExists(filepath.Join(home, "env.1")) }, out.String)
	vars, err := os.ReadFile(filepath.Join(home, "env.1"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(vars), "SLURM_PROCID=1\n") {
		t.Fatalf("not the environment of rank 1: %s", vars)
	}
	stolen := filepath.Join(s.Dir, "stolen")
	if err := os.WriteFile(stolen, vars, 0o644); err != nil {
		t.Fatal(err)
	}
	forged := `conf=$SLURM_CONF; unset "${!SLURM_@}"; export SLURM_CONF=$conf
while IFS='=' read -r k v; do export "$k=$v"; done <"$1"
exec "$0" train --ps 1 --workers 1 --epochs 1 --start-timeout 6s`
	r := s.As(within(t, 40*time.Second), other, words(on, "-n1 bash -c", []string{forged}, lab.Fisterra(t), stolen)...)
	if r.Code == 0 || !strings.Contains(r.Stderr, "did not find position 0") || !strings.Contains(r.Stderr, "munge") {
		t.Errorf("%s as rank 1 of %s's job: %v", other, mine, r)
	}
	// It really came to that door, and what it met there is another user.
	if !strings.Contains(r.Stderr, "uid") && !strings.Contains(r.Stderr, "credential") {
		t.Errorf("the refusal does not say who is meant: %v", r)
	}
	if err := os.WriteFile(filepath.Join(home, "let"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-ended:
		if code != 0 || lastResult(t, out.String()).Ranks != 2 {
			t.Errorf("the job itself: exit %d\n%s", code, out)
		}
	case <-time.After(40 * time.Second):
		t.Errorf("the job has not ended\n%s", out)
	}
}
