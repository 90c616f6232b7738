package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// TestClusterTwoUsers: two users' jobs share a node, and neither can join, read
// or stop the other's. What one must not do with the other's he can with his own: else the refusal
// would say nothing.
func TestClusterTwoUsers(t *testing.T) {
	t.Parallel()
	lab.Fisterra(t)
	s := lab.Cluster(t, 1, 12) // room for both jobs and what one tries against the other
	s.Throttle(slowRate)
	on := words("srun -p shared -n1 --nodelist", s.Nodes[0])
	start := func(user, transport string) *step {
		dir := filepath.Join(s.Home(user), "out")
		return awaitStep(t, s, dir, s.CommandAs(within(t, runLimit), user, words("srun -p shared -n4 --kill-on-bad-exit=0 --wait=0", lab.Fisterra(t),
			"train --checkpoint-every 25 --checkpoint", dir+"/state", "--out", dir, "--transport", transport, endless)...))
	}
	runs := map[string]*step{lab.Users[0]: start(lab.Users[0], "tcp"), lab.Users[1]: start(lab.Users[1], "auto")}
	// The one in shared memory waits for no network, and would keep the processors from all other tests.
	runs[lab.Users[1]].schedule("--idle")
	others := map[string]string{lab.Users[0]: lab.Users[1], lab.Users[1]: lab.Users[0]}
	stranger := s.TestBinary()

	for mine, x := range runs {
		other := others[mine]
		// bash runs a script on the node; $1 is a process of this run.
		bash := func(user, script string) string {
			t.Helper()
			r := s.As(within(t, longWait), user, words(on, "bash -c", []string{script, "bash", fmt.Sprint(x.pids["worker0"])})...)
			if r.Code != 0 {
				t.Fatalf("%s of %s: %v", script, user, r)
			}
			return strings.TrimSpace(r.Stdout)
		}
		const read = `for f in environ maps mem fd/0; do head -c1 "/proc/$1/$f" >/dev/null 2>&1 && echo -n "$f "; done; true`
		t.Run(other+" reads "+mine, func(t *testing.T) {
			if got := bash(mine, read); !strings.HasPrefix(got, "environ maps") {
				t.Fatalf("%s reads %q of his own process", mine, got)
			}
			if got := bash(other, read); got != "" {
				t.Errorf("%s reads %s of a process of %s", other, got, mine)
			}
			files := fmt.Sprintf("find /dev/shm /tmp -user %s -type f -readable 2>/dev/null; true", mine)
			bait := "/dev/shm/bait-of-" + mine
			bash(mine, "echo >"+bait+"; chmod 644 "+bait)
			if got := bash(other, files); got != bait {
				t.Errorf("%s can read %q of %s, want the bait %s alone", other, got, mine, bait)
			}
		})
		t.Run(other+" stops "+mine, func(t *testing.T) {
			if got := bash(other, `kill -KILL "$1" 2>/dev/null || echo refused`); got != "refused" {
				t.Errorf("%s kills a process of %s", other, mine)
			}
			r := s.As(t.Context(), mine, "squeue", "-h", "--me", "-o", "%A")
			if id := strings.TrimSpace(r.Stdout); id == "" {
				t.Errorf("no job of %s: %v", mine, r)
			} else if r := s.As(t.Context(), other, "scancel", id); r.Code == 0 {
				t.Errorf("%s cancels job %s of %s: %v", other, id, mine, r)
			}
		})
		t.Run(other+" joins "+mine, func(t *testing.T) {
			doors := x.listeners()
			if len(doors) < len(stepRoles) {
				t.Fatalf("the four ranks of %s listen at %v only", mine, doors)
			}
			r := s.As(within(t, runLimit), other, words(on, "env", doorsVariable+"="+strings.Join(doors, ","), stranger, "-test.run=^TestClusterDialledByStranger$ -test.v")...)
			if want := fmt.Sprintf("%d doors stay closed", len(doors)); r.Code != 0 || !strings.Contains(r.Stdout, want) {
				t.Errorf("%s at the doors of %s: want %q: %v", other, mine, want, r)
			}
		})
	}
	for name, x := range runs {
		x.schedule("--other")
		before := x.saves()
		eventually(t, longWait, "the run of "+name+" goes on", x.dir, func() bool { return x.saves() > before && x.running() }, x.state)
		if r := s.As(t.Context(), name, "scancel", "-s", "USR1", "--me"); r.Code != 0 {
			t.Fatal(r)
		}
		if code := x.wait(longWait); code != 128+10 || strings.Contains(x.state(), "rank lost") {
			t.Errorf("%s: exit code %d\n%s", name, code, x.state())
		}
		x.gone(stepRoles...)
	}
}

// schedule gives the processes of a step another policy: see chrt(1).
func (x *step) schedule(policy string) {
	x.t.Helper()
	for name, pid := range x.pids {
		if r := x.s.On(x.t.Context(), x.node(name), "chrt", "--all-tasks", policy, "--pid", "0", fmt.Sprint(pid)); r.Code != 0 {
			x.t.Fatal(r)
		}
	}
}

// listeners are the addresses at which the processes of a step of one node listen.
func (x *step) listeners() (addresses []string) {
	x.t.Helper()
	r := x.s.On(x.t.Context(), x.node("ps0"), "ss", "-ltnHp")
	if r.Code != 0 {
		x.t.Fatal(r)
	}
	for line := range strings.Lines(r.Stdout) {
		for _, pid := range x.pids {
			if f := strings.Fields(line); strings.Contains(line, fmt.Sprintf("pid=%d,", pid)) {
				addresses = append(addresses, f[3])
			}
		}
	}
	return addresses
}

const doorsVariable = "FISTERRA_TEST_DOORS"

// TestClusterDialledByStranger is what the other user does in TestClusterTwoUsers: he
// knows the protocol and all but the secret, and answers a door's proof with a forged one.
func TestClusterDialledByStranger(t *testing.T) {
	doors, ok := os.LookupEnv(doorsVariable)
	if !ok {
		t.Skip("a part of TestClusterTwoUsers")
	}
	closed := 0
	for _, address := range strings.Split(doors, ",") {
		for _, purpose := range []wire.Purpose{wire.Bootstrap, wire.Tree, wire.Data} {
			if err := forge(address, purpose); err != nil {
				t.Errorf("%v at %s: %v", purpose, address, err)
			}
		}
		closed++
	}
	t.Logf("%d doors stay closed", closed)
}

// forge is nil if the door turns a dialer without the secret away.
func forge(address string, purpose wire.Purpose) error {
	deadline := time.Now().Add(time.Minute)
	conn, err := net.DialTimeout("tcp", address, time.Until(deadline))
	if err != nil {
		return err
	}
	defer conn.Close()
	self := wire.Self{Secret: wire.NewSecret(), Job: "1.0.0", Rank: 1, Size: 4}
	if peer, err := wire.Greet(conn, &self, purpose, wire.Anyone, deadline); err == nil {
		return fmt.Errorf("rank %d believes a wrong secret", peer.Rank)
	}
	const forgedBytes = 32
	_, _ = conn.Write(make([]byte, forgedBytes)) // it may have closed already
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	switch n, err := conn.Read(make([]byte, 1)); {
	case n > 0:
		return errors.New("it answers a forged proof")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("it keeps the connection")
	}
	return nil
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
	cmd := s.CommandAs(within(t, runLimit), mine, words(on, "-n2 bash -c", []string{script}, lab.Fisterra(t), "train --ps 1 --workers 1 --epochs 1 --json --peer-timeout 1m --start-timeout 5m")...)
	out := newOutput()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() { ended <- exitCode(cmd.Wait()) }()
	eventually(t, longWait, "rank 1 waits", home, func() bool { return fileExists(filepath.Join(home, "env.1")) }, out.String)
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
exec "$0" train --ps 1 --workers 1 --epochs 1 --start-timeout 20s`
	r := s.As(within(t, longWait), other, words(on, "-n1 bash -c", []string{forged}, lab.Fisterra(t), stolen)...)
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
	case <-time.After(longWait):
		t.Errorf("the job has not ended\n%s", out)
	}
}
