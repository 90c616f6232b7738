package launch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// The guard is a small process that outlives a launcher killed by SIGKILL: it reads
// from its standard input the name of the job, and then which process groups of ranks there are, and when that ends without
// a farewell it kills them, and what has left them. A rank itself dies with the launcher by the
// kernel's parent-death signal; what the rank has started would not.

const farewell = "done"

type guard struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

func startGuard(command []string, job string) (*guard, error) {
	cmd := exec.Command(command[0], command[1:]...)
	// A launcher that is a rank itself has a job, whose guard must leave this one to its work.
	cmd.Env = append(os.Environ(), wire.EnvJob+"=")
	// A session of its own: a Ctrl-C at the terminal must not end it first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	fmt.Fprintln(in, job)
	return &guard{cmd: cmd, in: in}, nil
}

// watch tells the guard of a rank's group, and unwatch that it has ended: the system may give its number to
// another group.
func (g *guard) watch(pid int)   { fmt.Fprintln(g.in, pid) }
func (g *guard) unwatch(pid int) { fmt.Fprintln(g.in, -pid) }

func (g *guard) dismiss() {
	fmt.Fprintln(g.in, farewell)
	g.in.Close()
	_ = g.cmd.Wait() // it has no result
}

// RunGuard is the guard's whole program.
func RunGuard(in io.Reader) {
	var groups []int
	s := bufio.NewScanner(in)
	if !s.Scan() {
		return // there are no ranks yet
	}
	job := s.Text()
	for s.Scan() {
		if s.Text() == farewell {
			return
		}
		switch pid, err := strconv.Atoi(s.Text()); {
		case err != nil:
		case pid > 1:
			groups = append(groups, pid)
		default:
			groups = slices.DeleteFunc(groups, func(g int) bool { return g == -pid })
		}
	}
	for _, pid := range groups {
		_ = syscall.Kill(-pid, syscall.SIGTERM)
	}
	time.Sleep(100 * time.Millisecond) // the groups' last words
	for _, pid := range groups {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	killStrays(job)
}

// killStrays kills what has left the ranks' groups, wherever it is, and what that starts meanwhile.
func killStrays(job string) {
	for range 100 {
		dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is a good one
		found := false
		for _, dir := range dirs {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err == nil && isOf(job, pid) {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !found {
			return
		}
	}
}

// isOf reports whether a process has the job's name in its environment. One that has ended has none.
func isOf(job string, pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && slices.Contains(strings.Split(string(env), "\x00"), wire.EnvJob+"="+job)
}

// reapDescendants kills what the ranks have left behind: processes that left
// their group and were reparented to this one as the subreaper. They are known by the job's name in
// their environment, so that other children of the program stay untouched.
func reapDescendants(job string) {
	for range 100 {
		left := orphans(job)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			var status syscall.WaitStatus
			_, _ = syscall.Wait4(pid, &status, 0, nil)
		}
	}
}

func orphans(job string) []int {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // that thread has ended
		}
		for _, w := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(w)
			if err == nil && isOf(job, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
