package main

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
	"time"
)

// launchTime bounds one launch, whatever hangs in it.
const launchTime = 3 * time.Minute

// sandbox says in what network tcp is measured.
type sandbox struct {
	congestion string // the algorithm in force for every program
	own        bool   // a namespace of their own, where it is set by route
}

// newSandbox chooses the network for tcp. With root that is a network namespace whose
// loopback routes carry the congestion control, so that programs that do not choose one get
// it too and nothing of the machine changes; else all take the system's default.
func newSandbox(want string) (sandbox, error) {
	system, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return sandbox{}, err
	}
	name := strings.TrimSpace(string(system))
	if want == "system" || want == name {
		return sandbox{congestion: name}, nil
	}
	s := sandbox{congestion: want, own: true}
	cmd := s.wrap([]string{"true"})
	if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
		return sandbox{congestion: name}, fmt.Errorf("cannot set tcp congestion control %s in a network namespace (%s): all programs take the system's, %s",
			want, strings.TrimSpace(string(out)), name)
	}
	return s, nil
}

// wrap puts a command into the sandbox.
func (s sandbox) wrap(args []string) []string {
	if !s.own {
		return args
	}
	const script = `set -e
ip link set lo up
for a in 127.0.0.1 127.0.0.0/8; do
  ip route replace local $a dev lo table local proto kernel scope host src 127.0.0.1 congctl "$0"
done
exec "$@"`
	return append([]string{"unshare", "--net", "sh", "-c", script, s.congestion}, args...)
}

// launched is what one launch brought.
type launched struct {
	rows    []measured
	comment string  // its first line: library, version, thread level
	foreign float64 // cores that other processes used meanwhile
}

// launch runs a program once for a group.
func launch(outer context.Context, p *program, g group, s sandbox, budget time.Duration) (launched, error) {
	ctx, cancel := context.WithTimeout(outer, launchTime)
	defer cancel()
	args, env := p.command(g, budget)
	if g.transport == "tcp" {
		args = s.wrap(args)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	// The launchers start processes of their own: end all of them, not just the first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var errs bytes.Buffer
	out := printed{of: g, complete: func() {
		if p.endTime > 0 {
			time.AfterFunc(p.endTime, cancel)
		}
	}}
	cmd.Stdout, cmd.Stderr = &out, &errs
	busy, began := busyTime(), time.Now()
	err := cmd.Run()
	if err != nil && errors.Is(ctx.Err(), context.Canceled) && outer.Err() == nil {
		fmt.Fprintf(os.Stderr, "peers: %s has measured %s, but had not ended %v later: it was ended\n", p.name, g.name(), p.endTime)
		return parse(out.text.String(), g) // nobody knows how much of the processors it used
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return launched{}, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, lastLines(errs.String()+out.text.String(), 6))
	}
	l, err := parse(out.text.String(), g)
	if err != nil {
		return launched{}, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, lastLines(errs.String()+out.text.String(), 6))
	}
	own := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	l.foreign = max(0, (busyTime()-busy-own).Seconds()/time.Since(began).Seconds())
	return l, nil
}

// printed is what a program of a group has printed so far. It calls complete when that is every result.
type printed struct {
	text     bytes.Buffer
	of       group
	complete func()
	done     bool
}

func (r *printed) Write(p []byte) (int, error) {
	n, err := r.text.Write(p)
	if !r.done {
		if _, missing := parse(r.text.String(), r.of); missing == nil {
			r.done = true
			r.complete()
		}
	}
	return n, err
}

// busyTime is the time all cores of this machine have spent on something since it started.
func busyTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	var ticks int64
	for i, f := range fields {
		if i == 0 || i == 4 || i == 5 || i > 7 { // name; idle, iowait; steal and guest are not work here
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 everywhere
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

var errNoRows = errors.New("it printed no result")
