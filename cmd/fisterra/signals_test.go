package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/testlog"
)

// A rank whose signal comes after the run has ended by another's names the same.
func TestLateSignalNamesTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := hearSignals(os.LookupEnv)
		defer close(s.from)
		got := make(chan int, 1)
		go func() { got <- s.why() }()
		select {
		case n := <-got:
			t.Fatalf("signal %d before there was one", n)
		case <-time.After(signalSpread - time.Millisecond):
		}
		s.from <- syscall.SIGUSR1
		if n := <-got; n != int(syscall.SIGUSR1) {
			t.Errorf("signal %d, want USR1", n)
		}
		s.from <- syscall.SIGTERM // a later one changes nothing
		if n := s.why(); n != int(syscall.SIGUSR1) {
			t.Errorf("signal %d, want USR1, the first", n)
		}
	})
}

// A SIGTERM that comes before a rank hears signals ends its run, too.
func TestEarlySignalEndsTheRun(t *testing.T) {
	asked, ask := context.WithCancel(t.Context())
	ask()
	cmd := trainCommand(environment{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, lookup: func(string) (string, bool) { return "", false }})
	cmd.SetArgs(words("--ps 0 --workers 1 --model softmax --epochs 100000"))
	err := cmd.ExecuteContext(asked)
	if code := codeOf(asked, err); code != signalled+int(syscall.SIGTERM) {
		t.Errorf("exit %d, %v: want that of SIGTERM", code, err)
	}
}

// timeout(1) sends its signal twice at a time, and Slurm says SIGTERM more than once.
func TestOneRequestMayComeTwice(t *testing.T) {
	begin := time.Now()
	const term, ctrlC = syscall.SIGTERM, syscall.SIGINT
	for _, first := range []syscall.Signal{term, ctrlC} {
		anywhere := requestsTo(func(string) (string, bool) { return "", false })
		slurm := requestsTo(func(name string) (string, bool) { return "7", name == "SLURM_JOB_ID" })
		for _, c := range []struct {
			number syscall.Signal
			after  time.Duration
			want   request
			slurm  request
		}{
			{first, 0, asksFirst, asksFirst},
			{term, time.Millisecond, asksSame, asksSame},
			{ctrlC, sameRequest - 1, asksSame, asksSame},
			{term, sameRequest, asksAgain, asksSame},
			{ctrlC, sameRequest, asksAgain, asksAgain},
			{term, time.Hour, asksAgain, asksSame},
		} {
			at := begin.Add(c.after)
			if got := anywhere.take(c.number, at); got != c.want {
				t.Errorf("%v, then %v after %v: %v, want %v", first, c.number, c.after, got, c.want)
			}
			if got := slurm.take(c.number, at); got != c.slurm {
				t.Errorf("in a job of Slurm's, %v, then %v after %v: %v, want %v", first, c.number, c.after, got, c.slurm)
			}
		}
	}
}

// waitingForReader starts training whose model nobody reads and returns it when its ranks
// have started, with their process ids: whether they are asked to end or not, they will wait for the reader.
func waitingForReader(t *testing.T, ranks int, environ []string, args ...string) (cmd *lab.Cmd, errs *testlog.Buffer, pids []int) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "model.safetensors"), 0o600); err != nil {
		t.Fatal(err)
	}
	errs = new(testlog.Buffer)
	cmd = lab.Command(t.Context(), t, lab.Fisterra(t), append(args, "--epochs", "1", "--out", dir)...)
	cmd.Stderr = errs
	cmd.Env = append(os.Environ(), environ...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := regexp.MustCompile(`msg=started .*pid=(\d+)`)
	eventually(t, longWait, "the ranks start", dir, func() bool {
		pids = nil
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		for _, name := range logs {
			log, _ := os.ReadFile(name)
			if m := started.FindSubmatch(log); m != nil {
				pid, _ := strconv.Atoi(string(m[1]))
				pids = append(pids, pid)
			}
		}
		return len(pids) == ranks
	}, errs.String)
	return cmd, errs, pids
}

// TestHangUpSaves: a terminal that goes away, as with an ssh connection, costs no state.
func TestHangUpSaves(t *testing.T) {
	for _, c := range []struct {
		name, list string
		ranks      []string
	}{{"the starter of ranks", "--ps 1", []string{"ps0", "worker0", "worker1", "worker2"}}, {"a rank", "--ps 0 --workers 1", []string{"worker0"}}} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			errs := new(testlog.Buffer)
			cmd, _ := startRun(t, nil, errs, c.ranks, append(words(c.list), "--epochs", "100000", "--checkpoint", dir)...)
			for range 2 { // the terminal's and the shell's
				if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
			}
			if code := exitCode(cmd.Wait()); code != signalled+int(syscall.SIGHUP) || savedStep(t, dir) == 0 {
				t.Errorf("exit code %d, saved step %d\n%s", code, savedStep(t, dir), errs)
			}
		})
	}
}

// Who has the hang-up ignored, as nohup does, is not ended by it.
func TestHangUpIsIgnoredUnderNohup(t *testing.T) {
	for _, c := range []struct {
		before, wait string
		want         int
	}{{`trap "" HUP`, "sleep 1", 5}, {":", "while :; do sleep 0.1; done", signalled + int(syscall.SIGHUP)}} {
		r := lab.Command(t.Context(), t, "sh", "-c", c.before+`; exec "$0" run -- sh -c 'kill -HUP $PPID; `+c.wait+`; exit 5'`, lab.Fisterra(t)).Run()
		if r.Code != c.want {
			t.Errorf("after %q: exit code %d, want %d: %v", c.before, r.Code, c.want, r)
		}
	}
}

// What a shell without job control starts in the background has the interrupt ignored, and is not ended by it.
func TestInterruptIsIgnoredInTheBackground(t *testing.T) {
	r := lab.Command(t.Context(), t, "sh", "-c", `"$0" run -- sh -c 'kill -INT $PPID; sleep 1; exit 5' & wait $!`, lab.Fisterra(t)).Run()
	if r.Code != 5 {
		t.Errorf("exit code %d, want 5: %v", r.Code, r)
	}
}

// TestOutputThatNobodyReadsEnds: "| head" ends ranks as a request does, with time to save.
func TestOutputThatNobodyReadsEnds(t *testing.T) {
	for _, to := range []string{"", " >&2"} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		saved := filepath.Join(t.TempDir(), "saved")
		cmd := lab.Command(t.Context(), t, lab.Fisterra(t), "run", "--", "sh", "-c",
			`trap ': >`+saved+`; exit 0' TERM; while :; do echo here`+to+`; sleep 0.05; done`)
		cmd.Stdout, cmd.Stderr = write, write
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		write.Close()
		if _, err := read.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		read.Close()
		if code := exitCode(cmd.Wait()); code != signalled+int(syscall.SIGPIPE) || !fileExists(saved) {
			t.Errorf("echo%s: exit code %d, saved: %v", to, code, fileExists(saved))
		}
	}
}

// What nobody has read counts also where the ranks have ended by then, whatever comes first.
func TestLastWordsThatNobodyReads(t *testing.T) {
	for range 20 {
		gone := filepath.Join(t.TempDir(), "gone")
		r := lab.Command(t.Context(), t, "bash", "-c", `"$0" run -- sh -c 'until [ -e "$0" ]; do sleep 0.01; done; echo hi' "$1" | { exec 0<&-; : >"$1"; }; exit ${PIPESTATUS[0]}`,
			lab.Fisterra(t), gone).Run()
		if want := signalled + int(syscall.SIGPIPE); r.Code != want {
			t.Fatalf("exit code %d, want %d: %v", r.Code, want, r)
		}
	}
}

// A rank's own pipes are its own matter, as without a launcher, and so is an input that it does not read.
func TestRanksKeepSIGPIPE(t *testing.T) {
	r := fisterra(t, "run", "--", "sh", "-c", `exec 0<&-; yes | head -1; grep SigIgn: /proc/$$/status`)
	var ignored uint64
	m := regexp.MustCompile(`y\nSigIgn:\s*([0-9a-f]+)`).FindStringSubmatch(r.Stdout)
	if m != nil {
		ignored, _ = strconv.ParseUint(m[1], 16, 64)
	}
	if r.Code != 0 || m == nil || ignored>>(syscall.SIGPIPE-1)&1 != 0 {
		t.Errorf("signals that the rank ignores: %v", r)
	}
}

// TestSecondSignalEnds: a process that the first cannot end, here because it waits for a
// reader of its model, ends by the second, wherever it is sent.
func TestSecondSignalEnds(t *testing.T) {
	for _, c := range []struct {
		name          string
		ranks         int
		args          []string
		first, second syscall.Signal
		heard         string // the answer to the first
	}{
		{"a rank", 1, []string{"train", "--ps", "0", "--workers", "1"}, syscall.SIGINT, syscall.SIGTERM, "ends after this step"},
		{"a rank, Ctrl-C", 1, []string{"train", "--ps", "0", "--workers", "1"}, syscall.SIGTERM, syscall.SIGINT, "ends after this step"},
		{"the starter of ranks", 2, []string{"train", "--ps", "0", "--workers", "2"}, syscall.SIGTERM, syscall.SIGTERM, "terminated: ending 2 ranks"},
		{"the starter of ranks, Ctrl-C", 2, []string{"train", "--ps", "0", "--workers", "2"}, syscall.SIGTERM, syscall.SIGINT, "terminated: ending 2 ranks"},
		{"the starter of ranks, Ctrl-C first", 2, []string{"train", "--ps", "0", "--workers", "2"}, syscall.SIGINT, syscall.SIGTERM, "interrupt: ending 2 ranks"},
		{"the starter of ranks, Ctrl-C twice", 2, []string{"train", "--ps", "0", "--workers", "2"}, syscall.SIGINT, syscall.SIGINT, "interrupt: ending 2 ranks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd, errs, pids := waitingForReader(t, c.ranks, nil, c.args...)
			if err := cmd.Process.Signal(c.first); err != nil {
				t.Fatal(err)
			}
			if err := errs.Await(within(t, longWait), func(text string) bool { return strings.Contains(text, c.heard) }); err != nil {
				t.Fatal(err)
			}
			err := endOf(t, cmd, errs, c.second)
			if c.ranks == 1 {
				wantSignal(t, err, errs, c.second)
			} else if code := exitCode(err); code != signalled+int(c.first) || !strings.Contains(errs.String(), "again: killing 2 ranks") {
				t.Errorf("exit code %d, want that of %v, after it has killed 2 ranks\n%s", code, c.first, errs)
			}
			for _, pid := range pids {
				awaitExit(t, pid, longWait)
			}
		})
	}
}

// Slurm says SIGTERM more than once, seconds apart: a rank still ends with its step. Ctrl-C is a
// user's and is heard.
func TestSlurmRepeatsSIGTERM(t *testing.T) {
	t.Parallel()
	step := words("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_LOCALID=0",
		"SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=1")
	cmd, errs, _ := waitingForReader(t, 1, step, words("train --ps 0 --workers 1")...)
	signalAgain(t, cmd, syscall.SIGTERM, 4)
	if err := errs.Await(within(t, longWait), func(text string) bool { return strings.Contains(text, "ends after this step") }); err != nil {
		t.Error(err)
	}
	if strings.Contains(errs.String(), "asked again") {
		t.Errorf("it ends at once:\n%s", errs)
	}
	wantSignal(t, endOf(t, cmd, errs, syscall.SIGINT), errs, syscall.SIGINT)
}

// wantSignal checks by what a process ended.
func wantSignal(t *testing.T, err error, errs *testlog.Buffer, s syscall.Signal) {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != s {
		t.Errorf("it ended with %v, want %v\n%s", err, s, errs)
	}
}

// endOf sends a signal until the process has ended, and returns how: the signal counts from half a second after the
// first that the process has heard of.
func endOf(t *testing.T, cmd *lab.Cmd, errs *testlog.Buffer, s syscall.Signal) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	again := time.NewTicker(sameRequest)
	defer again.Stop()
	for limit := time.After(longWait); ; {
		select {
		case <-again.C:
			_ = cmd.Process.Signal(s) // os.ErrProcessDone: it has just ended
		case <-limit:
			t.Fatalf("it has not ended:\n%s", errs)
		case err := <-ended:
			return err
		}
	}
}

// What has no ranks to end does not outlive a SIGTERM by writing to who does not read, or by computing on.
func TestSigtermEndsWhatHasNoRanks(t *testing.T) {
	for _, args := range []string{"hosts n[1-65536]", "bench scale --ranks 65536 --sizes 8"} {
		cmd := exec.Command(lab.Fisterra(t), words(args)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it is at work
			t.Error(err)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		late := time.AfterFunc(longWait, func() { _ = cmd.Process.Kill() })
		ended, err := cmd.Process.Wait()
		late.Stop()
		if err != nil || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
			t.Errorf("%s: %v, %v; want the end by SIGTERM", args, ended, err)
		}
		out.Close()
	}
}

// Who has started ranks in Slurm's job goes on waiting for them, too.
func TestSlurmRepeatsSIGTERMToTheStarter(t *testing.T) {
	t.Parallel()
	errs := new(testlog.Buffer)
	cmd := lab.Command(t.Context(), t, lab.Fisterra(t), "run", "-n", "1", "--", "sh", "-c", `trap "" TERM; echo here >&2; while :; do sleep 0.1; done`)
	cmd.Stderr, cmd.Env = errs, append(os.Environ(), "SLURM_JOB_ID=7")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errs.Await(within(t, longWait), func(text string) bool { return strings.Contains(text, "here") }); err != nil {
		t.Fatal(err)
	}
	signalAgain(t, cmd, syscall.SIGTERM, 3)
	if code := exitCode(cmd.Wait()); code != signalled+int(syscall.SIGTERM) {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// signalAgain sends a signal so often, far enough apart to count each time.
func signalAgain(t *testing.T, cmd *lab.Cmd, s syscall.Signal, times int) {
	t.Helper()
	for again := time.NewTicker(sameRequest); times > 0; times-- {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		<-again.C
	}
}
