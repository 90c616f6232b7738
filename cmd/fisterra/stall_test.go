package main

import (
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
)

// TestStallIsReported: a rank that stands still, where no heartbeats call it lost, is named by
// the one that waits for it, without --verbose, and the run goes on when it does.
func TestStallIsReported(t *testing.T) {
	t.Parallel()
	var errs testlog.Buffer
	cmd, pids := startRun(t, io.Discard, &errs, []string{"worker0", "worker1"}, "--ps", "0", "--workers", "2", "--epochs", "5000", "--peer-timeout", "0", "--stall-after", "2s")
	signal := func(pid int, s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
	signal(pids["worker1"], syscall.SIGSTOP)
	stalled := regexp.MustCompile(`level=WARN .*(allreduce|barrier).*waits for rank 1 \(.*since [2-9]\.[0-9] s;.*rank=0`) // by default after 10 s
	err := errs.Await(within(t, longWait), stalled.MatchString)
	signal(pids["worker1"], syscall.SIGCONT)
	if err != nil {
		t.Error(err)
	}
	signal(cmd.Process.Pid, syscall.SIGUSR1)
	if code := exitCode(cmd.Wait()); code != signalled+int(syscall.SIGUSR1) || strings.Contains(errs.String(), "lost") {
		t.Errorf("exit code %d:\n%s", code, errs.String())
	}
}
