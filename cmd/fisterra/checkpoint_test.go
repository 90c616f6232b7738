package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCheckpointDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir() + "/state"
	claimed := func(job, restart int) claim {
		t.Helper()
		c, err := claimDirectory(dir, owner{Job: job, Restart: restart, Host: "c7101", PID: 7, Token: strings.Repeat("x", restart+1)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	old := claimed(5, 0)
	if err := old.check(); err != nil {
		t.Error(err)
	}
	requeued := claimed(5, 1)
	if err := requeued.check(); err != nil {
		t.Error(err)
	}
	if err := old.check(); err == nil || !strings.Contains(err.Error(), "taken over by job 5, restart 1, process 7 on c7101") {
		t.Errorf("the old incarnation may still save: %v", err)
	}
	if _, err := claimDirectory(dir, owner{Job: 5, Token: "late"}); err == nil || !strings.Contains(err.Error(), "later incarnation") {
		t.Errorf("an old incarnation that begins late: %v", err)
	}
	claimed(6, 0) // another job is another matter
	if err := requeued.check(); err == nil {
		t.Error("two jobs save into one directory")
	}
	if err := (claim{}).check(); err != nil {
		t.Error(err)
	}
	if files, err := filepath.Glob(dir + "/*.*.*"); err != nil || len(files) != 0 {
		t.Errorf("left: %v %v", files, err)
	}
}

// A run that takes over goes on with what was saved last, and what its
// predecessor still writes is not seen any more.
func TestCheckpointOutlivesItsPredecessor(t *testing.T) {
	dir := t.TempDir()
	claimed := func(token string) claim {
		t.Helper()
		c, err := claimDirectory(dir, owner{Host: "c7101", PID: 7, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	save := func(c claim, text string) {
		t.Helper()
		temp := c.state() + ".new" // as package train does: the file is replaced as a whole
		if err := errors.Join(os.WriteFile(temp, []byte(text), 0o644), os.Rename(temp, c.state())); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(file, want string) {
		t.Helper()
		if text, err := os.ReadFile(file); string(text) != want {
			t.Errorf("%s holds %q, want %q (%v)", filepath.Base(file), text, want, err)
		}
	}
	link := filepath.Join(dir, stateLink)
	first := claimed("first")
	if _, err := os.Stat(first.state()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a new directory has a state: %v", err)
	}
	save(first, "1")
	holds(link, "1")
	second := claimed("second")
	holds(second.state(), "1")
	save(first, "2") // looked before, writes after
	holds(second.state(), "1")
	holds(link, "1")
	save(second, "3")
	save(first, "4")
	holds(link, "3")
	if err := os.Remove(second.state()); err != nil { // to begin anew
		t.Fatal(err)
	}
	third := claimed("third")
	if _, err := os.Stat(third.state()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a state that was removed is back: %v", err)
	}
	save(third, "5")
	if err := os.Remove(link); err != nil { // under the users' name
		t.Fatal(err)
	}
	fourth := claimed("fourth")
	if _, err := os.Stat(fourth.state()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a state that was removed is back: %v", err)
	}
	// Two that begin at a time: whoever wrote the owner last has it, whatever the link says.
	save(fourth, "6")
	if err := errors.Join(os.Remove(link), os.Symlink("state-other.safetensors", link)); err != nil {
		t.Fatal(err)
	}
	if err := fourth.check(); err != nil {
		t.Error(err)
	}
	holds(link, "6")
	// A file that somebody has put there.
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, stateLink), []byte("7"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir = other
	holds(claimed("fifth").state(), "7")
}

// TestSuccessorOfTheChiefKeepsTheGuard: the worker that replaces a lost chief
// saves for its own run, and not over the state of one that has taken the directory over.
func TestSuccessorOfTheChiefKeepsTheGuard(t *testing.T) {
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken over %v", taken), func(t *testing.T) {
			dir := t.TempDir()
			link := filepath.Join(dir, stateLink)
			cmd, out, errs, pids := startLong(t, "--mode", "async", "--json", "--epochs", "10000", "--checkpoint", dir, "--checkpoint-every", "500")
			state := func() string { return out.String() + errs.String() }
			eventually(t, 20*time.Second, "the chief saves", dir, func() bool { return fileExists(link) }, state)
			if err := syscall.Kill(pids["worker0"], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			awaitExit(t, pids["worker0"], 20*time.Second)
			if taken {
				if _, err := claimDirectory(dir, owner{Host: "c7102", PID: 8, Token: "successor"}); err != nil {
					t.Fatal(err)
				}
			}
			before := savedStep(t, dir)
			for _, name := range []string{"ps0", "worker1", "worker2"} {
				if err := syscall.Kill(pids[name], syscall.SIGUSR1); err != nil {
					t.Fatal(err)
				}
			}
			code := exitCode(cmd.Wait())
			switch saved := savedStep(t, dir); {
			case taken && (code == 0 || !strings.Contains(errs.String(), "was taken over by process 8 on c7102") || saved != before):
				t.Errorf("exit code %d, saved step %d and then %d:\n%s", code, before, saved, state())
			case !taken && (code != 128+int(syscall.SIGUSR1) || saved <= before):
				t.Errorf("exit code %d, saved step %d and then %d:\n%s", code, before, saved, state())
			}
		})
	}
}

// TestLauncherHandsSignalsOn: where train has started its own ranks, whoever signals it
// means them.
func TestLauncherHandsSignalsOn(t *testing.T) {
	dir := t.TempDir()
	cmd, out, errs, _ := startLong(t, "--epochs", "2000", "--checkpoint", dir)
	state := func() string { return out.String() + errs.String() }
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGUSR2)
	eventually(t, 20*time.Second, "the chief saves", dir, func() bool { return fileExists(filepath.Join(dir, stateLink)) }, state)
	before := savedStep(t, dir)
	signal(syscall.SIGUSR1)
	code := exitCode(cmd.Wait())
	if saved := savedStep(t, dir); code != 128+int(syscall.SIGUSR1) || saved < before {
		t.Errorf("exit code %d, saved step %d and then %d:\n%s", code, before, saved, state())
	}
}
