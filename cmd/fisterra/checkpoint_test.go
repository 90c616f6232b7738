package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fits is the resume of a run that can go on from whatever is there.
func fits() error { return nil }

// saveState saves as package train does: the file is replaced as a whole.
func saveState(t *testing.T, c claim, text string) {
	t.Helper()
	temp := c.state() + ".new"
	if err := errors.Join(os.WriteFile(temp, []byte(text), 0o644), os.Rename(temp, c.state())); err != nil {
		t.Fatal(err)
	}
}

func fileHolds(t *testing.T, file, want string) {
	t.Helper()
	if text, err := os.ReadFile(file); string(text) != want {
		t.Errorf("%s holds %q, want %q (%v)", filepath.Base(file), text, want, err)
	}
}

func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func TestCheckpointDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir() + "/state"
	claimed := func(job, restart int) claim {
		t.Helper()
		c := newClaim(dir, owner{Job: job, Restart: restart, Host: "c7101", PID: 7, Token: strings.Repeat("x", restart+1)})
		if err := c.take(fits); err != nil {
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
	if err := newClaim(dir, owner{Job: 5, Token: "late"}).take(fits); err == nil || !strings.Contains(err.Error(), "later incarnation") {
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
		c := newClaim(dir, owner{Host: "c7101", PID: 7, Token: token})
		if err := c.take(fits); err != nil {
			t.Fatal(err)
		}
		return c
	}
	save := func(c claim, text string) { t.Helper(); saveState(t, c, text) }
	holds := func(file, want string) { t.Helper(); fileHolds(t, file, want) }
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

// A run that cannot go on from what is saved leaves it to its owner.
func TestClaimThatFailsChangesNothing(t *testing.T) {
	dir := t.TempDir()
	first := newClaim(dir, owner{Token: "first"})
	if err := first.take(fits); err != nil {
		t.Fatal(err)
	}
	saveState(t, first, "1")
	before := filesIn(t, dir)
	unfit := errors.New("another batch")
	second := newClaim(dir, owner{Token: "second"})
	err := second.take(func() error {
		fileHolds(t, second.state(), "1")
		return unfit
	})
	if !errors.Is(err, unfit) {
		t.Errorf("the claim ended with %v", err)
	}
	if err := first.check(); err != nil {
		t.Error(err)
	}
	if after := filesIn(t, dir); !slices.Equal(after, before) {
		t.Errorf("the files were %q, now %q", before, after)
	}
	fileHolds(t, filepath.Join(dir, stateLink), "1")
}

// What the owner before saves while its successor reads is not lost.
func TestClaimReadsTheLastWord(t *testing.T) {
	dir := t.TempDir()
	first, second := newClaim(dir, owner{Token: "first"}), newClaim(dir, owner{Token: "second"})
	if err := first.take(fits); err != nil {
		t.Fatal(err)
	}
	saveState(t, first, "1")
	var read []string
	err := second.take(func() error {
		text, err := os.ReadFile(second.state())
		if read = append(read, string(text)); len(read) == 1 {
			saveState(t, first, "2")
		}
		return err
	})
	if err != nil || !slices.Equal(read, []string{"1", "2"}) {
		t.Errorf("read %q: %v", read, err)
	}
	fileHolds(t, filepath.Join(dir, stateLink), "2")
}

// Another run that becomes the owner meanwhile is the one to go on from.
func TestClaimsThatMeet(t *testing.T) {
	dir := t.TempDir()
	first, second, third := newClaim(dir, owner{Token: "first"}), newClaim(dir, owner{Token: "second"}), newClaim(dir, owner{Token: "third"})
	if err := first.take(fits); err != nil {
		t.Fatal(err)
	}
	saveState(t, first, "1")
	reads := 0
	err := third.take(func() error {
		if reads++; reads > 1 {
			return nil
		}
		err := second.take(fits)
		saveState(t, second, "2")
		return err
	})
	if err != nil || reads != 2 {
		t.Errorf("read %d times: %v", reads, err)
	}
	fileHolds(t, third.state(), "2")
	if want := []string{ownerFile, third.own.State, stateLink}; !slices.Equal(filesIn(t, dir), want) {
		t.Errorf("left: %q, want %q", filesIn(t, dir), want)
	}
}

// A state on another file system, to which there can be no hard link, is copied.
func TestClaimCopiesWhatItCannotLink(t *testing.T) {
	elsewhere, err := os.MkdirTemp("/dev/shm", "fisterra-test")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(elsewhere)
	dir, far := t.TempDir(), filepath.Join(elsewhere, "state")
	if err := errors.Join(os.WriteFile(far, []byte("1"), 0o644), os.Symlink(far, filepath.Join(dir, stateLink))); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"first", "second"} {
		c := newClaim(dir, owner{Token: token})
		if err := c.take(fits); err != nil {
			t.Fatal(err)
		}
		fileHolds(t, c.state(), "1")
		if want := []string{ownerFile, c.own.State, stateLink}; !slices.Equal(filesIn(t, dir), want) {
			t.Errorf("left: %q, want %q", filesIn(t, dir), want)
		}
	}
	fileHolds(t, far, "1")
}

// A link that leads nowhere is no state, and does not become a run's file: two would write where it leads.
func TestClaimPassesOverALinkToNowhere(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(dir, stateLink)); err != nil {
		t.Fatal(err)
	}
	first := newClaim(dir, owner{Token: "first"})
	if err := first.take(fits); err != nil {
		t.Fatal(err)
	}
	if want := []string{ownerFile, stateLink}; !slices.Equal(filesIn(t, dir), want) {
		t.Errorf("left: %q, want %q", filesIn(t, dir), want)
	}
}

// An owner whose state lies elsewhere is none of Fisterra's: nothing there is removed.
func TestOwnerNamesNoFileElsewhere(t *testing.T) {
	outer := t.TempDir()
	dir, precious := filepath.Join(outer, "dir"), filepath.Join(outer, "x")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(precious, []byte("1"), 0o644),
		os.WriteFile(filepath.Join(dir, ownerFile), []byte(`{"token":"first","state":"../x"}`), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := newClaim(dir, owner{Token: "second"}).take(fits); err == nil || !strings.Contains(err.Error(), `"../x"`) {
		t.Errorf("the claim ended with %v", err)
	}
	fileHolds(t, precious, "1")
}

// An owner that cannot be read is in nobody's way for good.
func TestDamagedOwner(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ownerFile), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := newClaim(dir, owner{Token: "first"}).take(fits); err == nil || !strings.Contains(err.Error(), "owner.json: unexpected end of JSON input; remove the file if") {
		t.Errorf("the claim ended with %v", err)
	}
}

// What cannot take its name is removed.
func TestClaimLeavesNothingHalfMade(t *testing.T) {
	dir := t.TempDir()
	c := newClaim(dir, owner{Token: "first"})
	if err := os.MkdirAll(filepath.Join(dir, ownerFile, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if c.enter(owner{}) == nil {
		t.Error("a directory was replaced")
	}
	if want := []string{ownerFile}; !slices.Equal(filesIn(t, dir), want) {
		t.Errorf("left: %q, want %q", filesIn(t, dir), want)
	}
}

func TestClaimSweepsWhatOthersLeft(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	claimOf := func() claim { return newClaim(dir, owner{Token: rand.Text()}) }
	first := claimOf()
	if err := first.take(fits); err != nil {
		t.Fatal(err)
	}
	saveState(t, first, "1")
	killed, superseded, next := claimOf(), claimOf(), claimOf()
	write("." + killed.own.State + ".2130")
	for _, name := range []string{ownerFile, stateLink} {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(dir, write(name+"."+killed.own.Token)), old, old); err != nil {
			t.Fatal(err)
		}
	}
	write(superseded.own.State)
	if err := next.inherit(first.own); err != nil { // about to take over
		t.Fatal(err)
	}
	second := claimOf()
	want := []string{ownerFile, second.own.State, next.own.State, stateLink, write("state-best.safetensors"), write("." + second.own.State + ".77"), write("model.safetensors"), write(ownerFile + "." + next.own.Token)}
	if err := second.take(fits); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if got := filesIn(t, dir); !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
	fileHolds(t, filepath.Join(dir, stateLink), "1")
}

// The job is told to all its processes, whoever has started them.
func TestClaimantKnowsTheJobUnderEveryLauncher(t *testing.T) {
	for _, launcher := range []string{"FISTERRA_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", ""} {
		vars := map[string]string{"SLURM_JOB_ID": "5", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "c7101", launcher: "0"}
		o, err := claimant(environment{lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok }})
		if err != nil || o.Job != 5 || o.Restart != 2 || o.Token == "" {
			t.Errorf("%s: %+v, %v", launcher, o, err)
		}
	}
	outside := func(string) (string, bool) { return "", false }
	if o, err := claimant(environment{lookup: outside}); err != nil || o.Job != 0 {
		t.Errorf("outside a job: %+v, %v", o, err)
	}
	garbled := func(name string) (string, bool) { return "1.5", name == "SLURM_JOB_ID" }
	if _, err := claimant(environment{lookup: garbled}); err == nil || !strings.Contains(err.Error(), "SLURM_JOB_ID") {
		t.Errorf("a job that cannot be told from others: %v", err)
	}
}

// TestRunThatCannotResumeTakesNothingOver: a run is not ended by one that is started
// with other numbers on the same directory.
func TestRunThatCannotResumeTakesNothingOver(t *testing.T) {
	dir := t.TempDir()
	cmd, out, errs, _ := startLong(t, "--json", "--epochs", "10000", "--checkpoint", dir, "--checkpoint-every", "100")
	state := func() string { return out.String() + errs.String() }
	eventually(t, longWait, "the first run saves", dir, func() bool { return fileExists(filepath.Join(dir, stateLink)) }, state)
	r := fisterra(t, "train", "--checkpoint", dir, "--batch", "64")
	if r.Code != exitUsage || !strings.Contains(r.Stderr, filepath.Join(dir, stateLink)+`: the checkpoint has batch "48", this run "64"`) {
		t.Errorf("the second: %v", r)
	}
	before := savedStep(t, dir)
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Errorf("the first run has ended: %v", err)
	}
	if code := exitCode(cmd.Wait()); code != 128+int(syscall.SIGUSR1) || savedStep(t, dir) < before {
		t.Errorf("exit code %d, saved step %d and then %d:\n%s", code, before, savedStep(t, dir), state())
	}
}

// TestSuccessorOfTheChiefKeepsTheGuard: the worker that replaces a lost chief
// saves for its own run, and not over the state of one that has taken the directory over.
func TestSuccessorOfTheChiefKeepsTheGuard(t *testing.T) {
	t.Parallel() // mostly waits
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken over %v", taken), func(t *testing.T) {
			dir := t.TempDir()
			link := filepath.Join(dir, stateLink)
			cmd, out, errs, pids := startLong(t, "--mode", "async", "--json", "--epochs", "10000", "--checkpoint", dir, "--checkpoint-every", "500")
			state := func() string { return out.String() + errs.String() }
			eventually(t, longWait, "the chief saves", dir, func() bool { return fileExists(link) }, state)
			if err := syscall.Kill(pids["worker0"], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			awaitExit(t, pids["worker0"], longWait)
			if taken {
				if err := newClaim(dir, owner{Host: "c7102", PID: 8, Token: "successor"}).take(fits); err != nil {
					t.Fatal(err)
				}
			}
			before := savedStep(t, dir)
			if !taken { // or it ends by itself, at the next save
				eventually(t, longWait, "the successor saves", dir, func() bool { return savedStep(t, dir) > before }, state)
				before = savedStep(t, dir)
				if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
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

// TestRunThatWasReplacedEnds: also one that saves only when it is asked to, since its successor may write to the same
// output directory.
func TestRunThatWasReplacedEnds(t *testing.T) {
	t.Parallel() // mostly waits
	dir := t.TempDir()
	cmd, out, errs, _ := startLong(t, "--epochs", "100000", "--checkpoint", dir)
	if err := newClaim(dir, owner{Host: "c7102", PID: 8, Token: "successor"}).take(fits); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != exitFailed || !strings.Contains(errs.String(), "was taken over by process 8 on c7102") {
		t.Errorf("exit code %d:\n%s%s", code, out, errs)
	}
}

// TestLauncherHandsSignalsOn: where train has started its own ranks, whoever signals it
// means them.
func TestLauncherHandsSignalsOn(t *testing.T) {
	dir := t.TempDir()
	cmd, out, errs, _ := startLong(t, "--epochs", "10000", "--checkpoint", dir)
	state := func() string { return out.String() + errs.String() }
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGUSR2)
	eventually(t, longWait, "the chief saves", dir, func() bool { return fileExists(filepath.Join(dir, stateLink)) }, state)
	before := savedStep(t, dir)
	signal(syscall.SIGUSR1)
	code := exitCode(cmd.Wait())
	if saved := savedStep(t, dir); code != 128+int(syscall.SIGUSR1) || saved < before {
		t.Errorf("exit code %d, saved step %d and then %d:\n%s", code, before, saved, state())
	}
}
