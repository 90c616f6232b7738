package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// strays are the processes that have left the ranks' groups and lost their parent. This process is their parent then, as the
// subreaper, and has children that the program has started itself besides. Two things tell them apart. A stray that lives has
// the job's name in its environment. One that has ended has no environment any more; but the program's own children are held:
// package os has a pidfd for each process that it starts, until it has been waited for.
type strays struct {
	job    string
	before map[child]bool // which the program had when the job began
	named  map[child]bool // which had the job's name when it was last looked
	held   bool           // package os holds its children by pidfds
	over   chan struct{}  // closed to end reap
	ended  chan struct{}  // closed when reap has ended; nil: it has not begun
}

// child identifies a process, also when its number has become that of another.
type child struct {
	pid   int
	start uint64 // clock ticks after the boot
}

type stray struct {
	child
	group int
	ended bool // or about to: it has no environment any more
}

func newStrays(job string) *strays {
	s := &strays{job: job, before: map[child]bool{}, named: map[child]bool{}, over: make(chan struct{})}
	for _, pid := range children() {
		if c, err := strayOf(pid); err == nil {
			s.before[c.child] = true
		}
	}
	return s
}

// reapEvery is how long a process that a rank has left behind may have ended before somebody waits for it.
const reapEvery = time.Second

// reap waits, until end, for strays that have ended, which would be zombies for as long as the job runs. Ranks are no strays.
func (s *strays) reap(ranks []*process) {
	running := make(map[int]*process, len(ranks))
	for _, p := range ranks {
		running[p.pid] = p
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		look := time.NewTicker(reapEvery)
		defer look.Stop()
		for {
			select {
			case <-s.over:
				return
			case <-look.C:
			}
			for _, c := range s.look(running) {
				if c.ended {
					c.reaped()
				}
			}
		}
	}()
}

const (
	// strayPatience is how long what has been killed may take to end.
	strayPatience = 5 * time.Second
	// maxStrayPause is how late their end may be noticed.
	maxStrayPause = 50 * time.Millisecond
)

// end is called when no rank is left. It kills all strays, and those that become strays by it, and waits for them. The error
// names those that do not end.
func (s *strays) end() error {
	close(s.over)
	if s.ended != nil {
		<-s.ended
	}
	limit := time.Now().Add(strayPatience)
	for pause := time.Millisecond; ; pause = min(2*pause, maxStrayPause) {
		found := s.look(nil)
		if len(found) == 0 {
			return nil
		}
		var left []int
		for _, c := range found {
			_ = syscall.Kill(c.pid, syscall.SIGKILL)
			if !c.reaped() {
				left = append(left, c.pid)
			}
		}
		switch {
		case len(left) == 0: // those whose parents they were are to be found now
		case time.Now().After(limit):
			return fmt.Errorf("of what the ranks have left behind, processes %v have not ended within %v of SIGKILL,"+
				" as those do not that wait for a device or are traced: they stay this program's children", left, strayPatience)
		default:
			time.Sleep(pause)
		}
	}
}

// reaped waits for a child if it has ended, and reports whether it is a child no more.
func (c child) reaped() bool {
	got, err := syscall.Wait4(c.pid, nil, syscall.WNOHANG, nil)
	return got == c.pid || err == syscall.ECHILD
}

// look finds the strays, but for running ranks.
func (s *strays) look(running map[int]*process) []stray {
	named := map[child]bool{}
	var found, nameless []stray
	own := unix.Getpgrp()
	for _, pid := range children() {
		if p := running[pid]; p != nil && !p.over.Load() {
			continue
		}
		isNamed := isOf(s.job, pid) // before it is asked whether it has ended: else it could end in between
		c, err := strayOf(pid)
		switch {
		case err != nil || s.before[c.child]:
		case isNamed || s.named[c.child]:
			named[c.child] = true
			found = append(found, c)
		case c.ended && c.group != own: // what C libraries start, and wait for by its number, is in the program's group as a rule
			nameless = append(nameless, c)
		}
	}
	s.named = named
	return append(found, s.adopted(nameless)...)
}

// adopted are those of the ended children that package os does not hold: they are strays. A child of the program's own that
// has been waited for since is left out, too: its number is nobody's, or another's.
func (s *strays) adopted(ended []stray) []stray {
	if len(ended) == 0 || !s.held {
		return nil
	}
	held, err := heldProcesses()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(ended, func(c stray) bool {
		now, err := strayOf(c.pid)
		return held[c.pid] || err != nil || now.child != c.child
	})
}

var errUntold = errors.New("the kernel does not tell whom a pidfd holds")

// heldProcesses are the processes for which this one has pidfds. A pidfd of this process itself, opened here, shows whether
// the kernel tells at all.
func heldProcesses() (map[int]bool, error) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(self)
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	held := map[int]bool{}
	for _, d := range descriptors {
		if kind, err := os.Readlink("/proc/self/fd/" + d.Name()); err != nil || !strings.Contains(kind, "pidfd") {
			continue // it is another, or has been closed
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + d.Name())
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(info)) {
			if text, ok := strings.CutPrefix(line, "Pid:"); ok {
				if pid, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
					held[pid] = true
				}
			}
		}
	}
	if !held[os.Getpid()] {
		return nil, errUntold
	}
	return held, nil
}

func children() (pids []int) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is a good one
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // that thread has ended
		}
		for _, w := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(w); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Fields of /proc/PID/stat after the name, and what stands there: proc_pid_stat(5).
const (
	statState, statGroup, statFlags, statStart = 0, 2, 6, 19

	flagExiting = 0x4 // PF_EXITING
)

func strayOf(pid int) (stray, error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return stray{}, err
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // the name may have spaces and parentheses
	if len(f) <= statStart {
		return stray{}, fmt.Errorf("%s: %q has %d fields after the name, want more than %d", name, b, len(f), statStart)
	}
	group, err := strconv.Atoi(f[statGroup])
	flags, err2 := strconv.ParseUint(f[statFlags], 10, 64)
	start, err3 := strconv.ParseUint(f[statStart], 10, 64)
	if err := errors.Join(err, err2, err3); err != nil {
		return stray{}, fmt.Errorf("%s: %w", name, err)
	}
	return stray{child{pid, start}, group, f[statState] == "Z" || flags&flagExiting != 0}, nil
}
