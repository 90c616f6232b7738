package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// The guard is a small process that outlives a launcher killed by SIGKILL. From its standard input it reads the name of the
// job, and then which process groups of ranks there are. When the input ends without a farewell it kills those groups, and
// the processes that have left them. A rank itself dies with the launcher by the kernel's parent-death signal; what the rank
// has started would not.

const farewell = "done"

// guardPatience is how long a guard may take to read a word, and to end after the farewell. It has nothing else to do.
const guardPatience = 5 * time.Second

type guard struct {
	cmd *exec.Cmd

	mu   sync.Mutex // a word goes out as a whole, within its own deadline
	in   *os.File
	deaf bool // it has not taken a word in time, and is told nothing more
}

func startGuard(command []string, job string) (*guard, error) {
	cmd := exec.Command(command[0], command[1:]...)
	// A launcher that is a rank itself has a job, whose guard must leave this one to its work.
	cmd.Env = append(os.Environ(), wire.EnvJob+"=")
	// A session of its own: a Ctrl-C at the terminal must not end it first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	read, in, err := os.Pipe() // not StdinPipe, whose writer need not have deadlines
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd.Stdin = read
	if err := cmd.Start(); err != nil {
		in.Close()
		return nil, err
	}
	g := &guard{cmd: cmd, in: in}
	g.tell(job)
	return g, nil
}

// tell sends the guard a word, and kills a guard that does not read it in time: that one would act on what it has heard until
// then, and one day kill groups whose numbers have become others'.
func (g *guard) tell(word any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.deaf {
		return
	}
	_ = g.in.SetWriteDeadline(time.Now().Add(guardPatience)) // pipes have deadlines
	if _, err := fmt.Fprintln(g.in, word); errors.Is(err, os.ErrDeadlineExceeded) {
		g.deaf = true
		_ = g.cmd.Process.Kill()
	}
}

// watch tells the guard of a rank's group, and unwatch that it has ended: the system may give its number to
// another group.
func (g *guard) watch(pid int)   { g.tell(pid) }
func (g *guard) unwatch(pid int) { g.tell(-pid) }

// dismiss ends the guard: by SIGKILL if it does not end by itself, having been stopped, say.
func (g *guard) dismiss() error {
	g.tell(farewell)
	g.in.Close()
	ended := make(chan struct{})
	go func() {
		_ = g.cmd.Wait() // it has no result
		close(ended)
	}()
	limit := time.After(guardPatience)
	late := "has not ended within %v of its farewell"
	if g.deaf {
		late = "has not taken what it was told within %v"
	} else {
		select {
		case <-ended:
			return nil
		case <-limit:
		}
		limit = time.After(guardPatience)
		_ = g.cmd.Process.Kill()
	}
	late = fmt.Sprintf("the guard, process %d (%s), "+late, g.cmd.Process.Pid, strings.Join(g.cmd.Args, " "), guardPatience)
	select {
	case <-ended:
		return fmt.Errorf("%s, as one does that is stopped, and was killed", late)
	case <-limit:
		return fmt.Errorf("%s, and within as long not of SIGKILL either: it is left behind", late)
	}
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
