package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// background is the nice value of runs that are only to go on: a thirtieth of the claim that others have.
const background = 15

// Background has every fisterra process with a path below s.Dir among its arguments leave the processors to others
// that want them, as long as it lives: training has no end of work, and tests wait for Slurm's clocks beside it.
func (s *Slurm) Background(t testing.TB) {
	t.Helper()
	binary := Fisterra(t)
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range all {
		if exe, err := os.Readlink(filepath.Join(dir, "exe")); err != nil || exe != binary {
			continue
		}
		if args, err := os.ReadFile(filepath.Join(dir, "cmdline")); err != nil || !strings.Contains(string(args), s.Dir+"/") {
			continue
		}
		if err := renice(dir, background); err != nil {
			t.Error(err)
		}
	}
}

// renice sets the nice value of every thread of a process, whose new threads inherit it. The process may end meanwhile.
func renice(proc string, nice int) error {
	threads, err := filepath.Glob(filepath.Join(proc, "task", "*"))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(filepath.Base(thread))
		if err != nil {
			return err
		}
		// The system call has 20 less the value.
		if now, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && 20-now >= nice {
			continue // tests that were started so
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, tid, nice); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("thread %d: nice value %d: %w", tid, nice, err)
		}
	}
	return nil
}
