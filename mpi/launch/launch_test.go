package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"golang.org/x/sys/unix"
)

// TestMain lets the test binary play the guard and the launcher that is killed.
func TestMain(m *testing.M) {
	switch os.Getenv("LAUNCH_TEST_ROLE") {
	case "guard":
		RunGuard(os.Stdin)
		os.Exit(0)
	case "launcher":
		_, err := Run(context.Background(), Config{
			Ranks: 2, Program: "sh", Args: []string{"-c", os.Getenv("LAUNCH_TEST_SCRIPT")},
			Guard: guardCommand(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		})
		fmt.Println(err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func guardCommand() []string {
	return []string{"env", "LAUNCH_TEST_ROLE=guard", os.Args[0]}
}

func run(t *testing.T, cfg Config, script string) (Outcome, string) {
	t.Helper()
	var out bytes.Buffer
	cfg.Program, cfg.Args = "sh", []string{"-c", script}
	cfg.Stdout, cfg.Stderr = &out, &out
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o, out.String()
}

func TestRanksGetTheirPlaceAndSecret(t *testing.T) {
	o, out := run(t, Config{Ranks: 3, Label: ByRank},
		`echo $FISTERRA_RANK of $FISTERRA_SIZE local $FISTERRA_LOCAL_RANK of $FISTERRA_LOCAL_SIZE; eval "wc -c <&$FISTERRA_SECRET_FD"; env | grep -ci secret=; true`)
	if o.Code != 0 {
		t.Errorf("code %d", o.Code)
	}
	for _, want := range []string{"0: 0 of 3 local 0 of 3\n", "2: 2 of 3 local 2 of 3\n", "1: 32\n", "1: 0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Both outputs of all ranks go to one writer, line by line.
func TestOutputsShareAWriter(t *testing.T) {
	o, out := run(t, Config{Ranks: 3}, `i=0; while [ $i -lt 200 ]; do echo to stdout; echo to stderr >&2; i=$((i+1)); done`)
	if o.Code != 0 || strings.Count(out, "to stdout\n") != 600 || strings.Count(out, "to stderr\n") != 600 {
		t.Errorf("%+v, %d bytes", o, len(out))
	}
}

// Each Write has whole lines, with their labels: lines do not mix either where two writers end in one file.
func TestWritesAreWholeLines(t *testing.T) {
	var out, errs pieces
	o, err := Run(t.Context(), Config{Ranks: 2, Label: ByRank, Stdout: &out, Stderr: &errs, Program: "sh", Args: []string{"-c",
		"for i in $(seq 100); do echo one; printf 'two\nthree\n' >&2; done; printf 'no end'; printf '\nnor here' >&2"}})
	if err != nil || o.Code != 0 {
		t.Fatalf("%+v, %v", o, err)
	}
	line := regexp.MustCompile(`^[01]: (|one|two|three|no end|nor here)\n$`)
	for _, c := range []struct {
		pieces
		lines int
	}{{out, 2 * 101}, {errs, 2 * 202}} {
		lines := 0
		for _, text := range c.pieces {
			for l := range strings.Lines(text) {
				lines++
				if !line.MatchString(l) {
					t.Errorf("%q in a write of %q: want lines with their rank", l, text)
				}
			}
		}
		if lines != c.lines {
			t.Errorf("%d lines, want %d", lines, c.lines)
		}
	}
}

// Whatever ends a line, the next one has its label; a terminal would show it in the middle of one otherwise, or not at all.
func TestLabelsOfLines(t *testing.T) {
	for _, c := range []struct {
		said []string // in a read each
		want string
	}{
		{[]string{"10 %\r20 %\r"}, "1: 10 %\r1: 20 %\r"},
		{[]string{"10 %\r", "20 %\r", "done\n"}, "1: 10 %\r1: 20 %\r1: done\n"},
		{[]string{"a\r\nb\n\nc"}, "1: a\r\n1: b\n1: \n1: c\n"},
		{[]string{"a\r", "\nb\r", "c\r", "\n\n"}, "1: a\r\n1: b\r1: c\r\n1: \n"},
	} {
		var out bytes.Buffer
		var reads []io.Reader
		for _, s := range c.said {
			reads = append(reads, strings.NewReader(s))
		}
		newLines(&out).copy(io.MultiReader(reads...), "1: ", &rankLog{})
		if out.String() != c.want {
			t.Errorf("%q: %q, want %q", c.said, out.String(), c.want)
		}
	}
}

// pieces keeps each Write by itself.
type pieces []string

func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, string(b))
	return len(b), nil
}

func TestFirstFailureEndsTheRest(t *testing.T) {
	var said []string
	o, _ := run(t, Config{Ranks: 3, Grace: time.Minute, Notify: func(s string) { said = append(said, s) }},
		`if [ $FISTERRA_RANK = 1 ]; then exit 7; fi; sleep 100`)
	if o.First == nil || o.First.Rank != 1 || o.First.Code != 7 {
		t.Errorf("first failure %+v", o.First)
	}
	if o.Code != 7 || o.Exits[0].Signal != syscall.SIGTERM || !o.Exits[0].Ended {
		t.Errorf("%+v: want code 7, and rank 0 ended by SIGTERM", o)
	}
	if len(said) == 0 || !strings.Contains(said[0], "rank 1 on ") || !strings.Contains(said[0], "exit code 7") {
		t.Errorf("said %q", said)
	}
}

// A rank that has failed by itself counts although the launcher hears of it only
// after it has begun to end the others, here because nobody takes its output before.
func TestHighestCodeOfThoseThatEndedByThemselves(t *testing.T) {
	noticed := make(chan struct{})
	notice := sync.OnceFunc(func() { close(noticed) })
	o, err := Run(t.Context(), Config{
		Ranks: 3, Grace: time.Minute, Stdout: heldUp(noticed), Notify: func(string) { notice() },
		Program: "sh", Args: []string{"-c", `cd ` + t.TempDir() + `; case $FISTERRA_RANK in
		0) echo failing; echo $$ >new; mv new pid; exit 9;;
		1) until [ -e pid ]; do sleep 0.01; done; while kill -0 $(cat pid); do sleep 0.01; done; exit 7;;
		esac; sleep 100`},
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.Code != 9 || o.Exits[0].Ended || o.Exits[1].Ended || !o.Exits[2].Ended || o.First == nil || o.First.Code != 7 {
		t.Errorf("%+v: want the code 9 of rank 0, which the launcher did not end", o)
	}
}

// heldUp takes nothing until it is closed, or the test has failed.
type heldUp chan struct{}

func (h heldUp) Write(b []byte) (int, error) {
	select {
	case <-h:
	case <-time.After(time.Minute):
	}
	return len(b), nil
}

// The end of a job by a rank's failure is no reason to drop what the others have written, though nobody takes it within Grace.
func TestFailureCutsNobodysOutput(t *testing.T) {
	out, dir := &lateReader{after: 4 * lateOutput}, t.TempDir() // longer than that of killed ranks is waited for
	o, err := Run(t.Context(), Config{Ranks: 2, Grace: lateOutput, Stdout: out, Program: "sh", Args: []string{"-c",
		"cd " + dir + "; if [ $FISTERRA_RANK = 1 ]; then until [ -e written ]; do sleep 0.01; done; exit 3; fi; echo $$; seq 1 10000; : >written; sleep 100"}})
	_, numbers, _ := bytes.Cut(out.Bytes(), []byte("\n"))
	if err != nil || o.Code != 3 || !bytes.HasSuffix(numbers, []byte("\n10000\n")) {
		t.Errorf("%+v, %v: %d B that end in %q, want all numbers up to 10000", o, err, len(numbers), numbers[max(0, len(numbers)-20):])
	}
}

// What a rank has written comes, however late somebody takes it.
func TestLateReaderLosesNothing(t *testing.T) {
	out := &lateReader{after: lateOutput + lateOutput/2} // longer than its output may still come
	o, err := Run(t.Context(), Config{Ranks: 1, Program: "sh", Args: []string{"-c", "echo $$; exec seq 1 10000"}, Stdout: out})
	_, numbers, _ := bytes.Cut(out.Bytes(), []byte("\n"))
	if want, _ := exec.Command("seq", "1", "10000").Output(); err != nil || out.err != nil || o.Code != 0 || !bytes.Equal(numbers, want) {
		t.Errorf("%+v, %v, %v: %d bytes of %d", o, err, out.err, len(numbers), len(want))
	}
}

// lateReader takes the first of a rank's output, its number, when the rank has been over for so long.
type lateReader struct {
	bytes.Buffer
	after time.Duration
	err   error
}

func (r *lateReader) Write(b []byte) (int, error) {
	if r.Len() == 0 {
		number, _, _ := strings.Cut(string(b), "\n")
		var pid int
		if pid, r.err = strconv.Atoi(number); r.err == nil {
			r.err = lab.AwaitEnd(pid, time.Minute)
		}
		<-time.After(r.after)
	}
	return r.Buffer.Write(b)
}

// A daemon that has left its session and its rank, with the outputs, keeps the job neither by silence nor by talking, and
// is not left behind.
func TestNothingIsLeftBehind(t *testing.T) {
	for _, does := range []string{"exec sleep 1000", "while :; do echo still here; sleep 0.01; done"} {
		_, out := run(t, Config{Ranks: 1}, `cd `+t.TempDir()+`; setsid sh -c 'echo $$; : >apart; `+does+`' & until [ -e apart ]; do sleep 0.01; done`)
		pid, _, _ := strings.Cut(out, "\n")
		expectGone(t, pid)
	}
}

// A log that is cut off, as on a full disk, or cannot be closed, is said and no success.
func TestLogThatCannotBeWritten(t *testing.T) {
	for name, open := range map[string]func() (io.WriteCloser, error){
		"full":     func() (io.WriteCloser, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) },
		"unclosed": func() (io.WriteCloser, error) { return unclosed{io.Discard}, nil },
	} {
		var said []string
		o, out := run(t, Config{Ranks: 2, Notify: func(s string) { said = append(said, s) }, Tee: func(rank int) (io.WriteCloser, error) {
			if rank == 0 {
				return os.Create(filepath.Join(t.TempDir(), "rank0.log"))
			}
			return open()
		}}, "echo shown; echo shown >&2")
		if o.Code != 1 || o.Exits[0].Log != nil || !errors.Is(o.Exits[1].Log, syscall.ENOSPC) || strings.Count(out, "shown\n") != 4 {
			t.Errorf("%s: %+v, logs %v and %v, %q: want code 1 and no space", name, o, o.Exits[0].Log, o.Exits[1].Log, out)
		}
		if len(said) != 1 || !strings.Contains(said[0], "1 ranks") || !strings.Contains(said[0], "rank 1") || !strings.Contains(said[0], syscall.ENOSPC.Error()) {
			t.Errorf("%s: said %q", name, said)
		}
	}
}

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return syscall.ENOSPC }

func TestSignalIsNamed(t *testing.T) {
	o, _ := run(t, Config{Ranks: 2}, `if [ $FISTERRA_RANK = 0 ]; then kill -KILL $$; fi; sleep 100`)
	if o.First == nil || o.First.String() != "killed by signal 9 (SIGKILL)" || o.Code < 137 {
		t.Errorf("%+v", o)
	}
}

func TestContinueLeavesTheOthers(t *testing.T) {
	o, out := run(t, Config{Ranks: 2, Policy: Continue}, `if [ $FISTERRA_RANK = 0 ]; then exit 3; fi; sleep 0.3; echo still here`)
	if !strings.Contains(out, "still here") || o.Exits[1].Code != 0 || o.First.Rank != 0 {
		t.Errorf("%+v %q", o, out)
	}
}

// A job ends when its time is up, or when it is asked to twice, although nobody takes what its ranks write, nor hears what is said.
func TestStuckOutputDoesNotKeepTheJob(t *testing.T) {
	again := make(chan syscall.Signal, 2)
	again <- syscall.SIGINT
	again <- syscall.SIGINT
	for name, c := range map[string]struct {
		cfg    Config
		script string
		code   int
	}{
		"time limit":             {Config{Timeout: 200 * time.Millisecond, Grace: 200 * time.Millisecond}, "exec yes", ExitTimeout},
		"time limit, ranks over": {Config{Timeout: time.Second, Grace: 200 * time.Millisecond}, "echo over", ExitTimeout},
		"asked twice":            {Config{Interrupts: again, Grace: time.Hour}, "exec yes", 128 + int(syscall.SIGINT)},
	} {
		stuck, said := make(heldUp), make(chan string, maxNotices)
		cfg := c.cfg
		cfg.Ranks, cfg.Program, cfg.Args = 2, "sh", []string{"-c", c.script}
		cfg.Stdout, cfg.Notify = stuck, func(message string) {
			said <- message
			stuck.Write(nil)
		}
		type result struct {
			Outcome
			error
		}
		ended := make(chan result, 1)
		go func() {
			o, err := Run(t.Context(), cfg)
			ended <- result{o, err}
		}()
		select {
		case r := <-ended:
			if r.error != nil || r.Code != c.code {
				t.Errorf("%s: %+v, %v: want code %d", name, r.Outcome, r.error, c.code)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the job waits for somebody to take its output", name)
		}
		close(stuck)
	}
}

// Ranks that have ended are not among those that are killed, though nobody takes their output.
func TestKillsWhoIsThere(t *testing.T) {
	stuck, said, stop := make(heldUp), make(chan string, maxNotices), make(chan syscall.Signal, 1)
	defer close(stuck)
	_, err := Run(t.Context(), Config{
		Ranks: 3, Grace: 200 * time.Millisecond, Interrupts: stop, Notify: func(message string) { said <- message },
		Stdout: stuck, Stderr: &signaller[syscall.Signal]{to: stop, after: 1, signals: []syscall.Signal{syscall.SIGTERM}},
		Program: "sh", Args: []string{"-c", `cd ` + t.TempDir() + `; if [ $FISTERRA_RANK != 1 ]; then echo over; echo $$ >new$$; mv new$$ pid$FISTERRA_RANK; exit; fi
		trap "" TERM; for r in 0 2; do until [ -e pid$r ]; do sleep 0.01; done; while kill -0 $(cat pid$r); do sleep 0.01; done 2>/dev/null; done
		echo ready >&2; while :; do sleep 0.05; done`},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"terminated: ", "1 ranks did not end", "the output of 2 ranks"} {
		select {
		case message := <-said:
			if !strings.HasPrefix(message, want) {
				t.Errorf("said %q, want %q", message, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nothing said, want %q", want)
		}
	}
}

func TestTimeout(t *testing.T) {
	o, _ := run(t, Config{Ranks: 2, Timeout: 200 * time.Millisecond}, `sleep 100`)
	if !o.TimedOut || o.Code != ExitTimeout {
		t.Errorf("%+v", o)
	}
}

// A job that ends for another reason does so by that, also when its time is up meanwhile.
func TestTimeoutWhileRanksEnd(t *testing.T) {
	dir := t.TempDir()
	var said []string
	o, _ := run(t, Config{Ranks: 2, Timeout: time.Second, Grace: time.Minute, Notify: func(s string) { said = append(said, s) }},
		`cd `+dir+`; if [ $FISTERRA_RANK = 0 ]; then until [ -e ready ]; do sleep 0.01; done; exit 3; fi
		trap 'sleep 1.5; exit 0' TERM; echo >ready; while :; do sleep 0.05; done`)
	if len(said) > 0 && strings.Contains(said[0], "time limit") {
		t.Skip("rank 0 did not fail within the time limit")
	}
	if o.TimedOut || o.Code != 3 || len(said) != 1 {
		t.Errorf("%+v %q: want the code 3 of rank 0", o, said)
	}
}

func TestStubbornRankIsKilled(t *testing.T) {
	stop := make(chan syscall.Signal, 1)
	o, err := Run(t.Context(), Config{
		Ranks: 1, Interrupts: stop, Grace: 200 * time.Millisecond,
		Program: "sh", Args: []string{"-c", `trap "" TERM; echo ready; while :; do sleep 0.05; done`},
		Stdout: &signaller[syscall.Signal]{to: stop, after: 1, signals: []syscall.Signal{syscall.SIGINT}},
	})
	if err != nil || o.Exits[0].Signal != syscall.SIGKILL {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestSecondInterruptKills(t *testing.T) {
	for _, asked := range [][]syscall.Signal{{syscall.SIGINT, syscall.SIGINT}, {syscall.SIGINT, syscall.SIGTERM}, {syscall.SIGTERM, syscall.SIGINT}, {syscall.SIGTERM, syscall.SIGTERM}} {
		stop := make(chan syscall.Signal, 2)
		o, err := Run(t.Context(), Config{
			Ranks: 2, Interrupts: stop, Grace: time.Minute,
			Program: "sh", Args: []string{"-c", `trap "" TERM; echo ready; while :; do sleep 0.05; done`},
			Stdout: &signaller[syscall.Signal]{to: stop, after: 2, signals: asked},
		})
		if err != nil || o.Interrupted != asked[0] || o.Code != 128+int(asked[0]) || o.Exits[0].Signal != syscall.SIGKILL {
			t.Errorf("%v: %+v, %v", asked, o, err)
		}
	}
}

// Ranks that end because another failed keep the time they have for it when somebody asks for what is being done.
func TestFirstInterruptIsGracefulWhileRanksEnd(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan syscall.Signal, 1)
	o, out := run(t, Config{Ranks: 2, Interrupts: stop, Grace: time.Minute, Notify: func(text string) {
		if strings.Contains(text, "ending the other") {
			stop <- syscall.SIGTERM
		}
	}}, `cd `+dir+`; if [ $FISTERRA_RANK = 0 ]; then until [ -e ready ]; do sleep 0.01; done; exit 3; fi
		trap 'sleep 0.3; echo saved; exit 0' TERM; echo >ready; while :; do sleep 0.05; done`)
	if !strings.Contains(out, "saved") || o.Exits[1].Signal != 0 || o.Code != 3 {
		t.Errorf("%+v %q", o, out)
	}
}

// A rank that acts on a signal gets it, and what it has started, and would die of it, does not.
func TestForwardedSignalsReachTheRanksAlone(t *testing.T) {
	forward := make(chan os.Signal, 1)
	o, err := Run(t.Context(), Config{
		Ranks: 2, Forward: forward, Policy: Continue,
		Program: "sh", Args: []string{"-c", `sleep 100 & child=$!; trap 'kill -TERM $child; wait $child; exit $?' USR1; echo ready; wait`},
		Stdout: &signaller[os.Signal]{to: forward, after: 2, signals: []os.Signal{syscall.SIGUSR1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range o.Exits {
		if x.Code != 128+int(syscall.SIGTERM) || x.Signal != 0 || x.Ended {
			t.Errorf("%+v: want the exit code by which its child ended, of SIGTERM", x)
		}
	}
}

// signaller sends signals once so many ranks have said something.
type signaller[S os.Signal] struct {
	to      chan S
	after   int
	signals []S
}

func (s *signaller[S]) Write(b []byte) (int, error) {
	if s.after--; s.after == 0 {
		for _, x := range s.signals {
			s.to <- x
		}
	}
	return len(b), nil
}

func TestInputGoesToRankZero(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "input")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const lines = "one\ntwo\n"
	if _, err := file.WriteString(lines); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]io.Reader{"a file": file, "a reader": strings.NewReader(lines)} {
		_, out := run(t, Config{Ranks: 2, Label: ByRank, Stdin: in}, `cat`)
		if want := "0: one\n0: two\n"; out != want {
			t.Errorf("%s: %q, want %q", name, out, want)
		}
	}
}

// endless is an input of which nothing ever comes, until the test gives up.
type endless chan struct{}

func (e endless) Read([]byte) (int, error) {
	<-e
	return 0, io.EOF
}

func TestInputWithoutEndDoesNotKeepTheJob(t *testing.T) {
	in := make(endless)
	defer time.AfterFunc(time.Minute, func() {
		t.Error("the job waits for an input that nobody reads")
		close(in)
	}).Stop()
	if o, _ := run(t, Config{Ranks: 2, Stdin: in}, `exit 0`); o.Code != 0 {
		t.Errorf("%+v", o)
	}
}

// TestInputFromTerminal has a launcher that leads a session, and what is typed.
func TestInputFromTerminal(t *testing.T) {
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer ours.Close()
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "LAUNCH_TEST_ROLE=launcher", "LAUNCH_TEST_SCRIPT=cat")
	cmd.Stdin = theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if _, err := ours.WriteString("typed\n\x04"); err != nil { // Ctrl-D
		t.Fatal(err)
	}
	if out, err := cmd.Output(); err != nil || string(out) != "typed\n<nil>\n" {
		t.Errorf("%q, %v: want what was typed", out, err)
	}
}

func TestMissingProgram(t *testing.T) {
	_, err := Run(t.Context(), Config{Ranks: 1, Program: "no-such-program-here"})
	if err == nil || !strings.Contains(err.Error(), "no-such-program-here") {
		t.Errorf("error %v", err)
	}
}

func TestRanksThatCannotBe(t *testing.T) {
	for _, n := range []int{0, -1, MaxRanks + 1, math.MaxInt} {
		if o, err := Run(t.Context(), Config{Ranks: n, Program: "true"}); !errors.Is(err, ErrStart) || !errors.Is(err, ErrRanks) {
			t.Errorf("%d: %+v, %v", n, o, err)
		}
	}
}

// Go ends a program that has 10,000 threads, and there may be more ranks. Nor may the launcher hold more descriptors for a rank
// than the two of its output and Go's own.
func TestRanksTakeNoThreads(t *testing.T) {
	const ranks = 200
	threads := func() int { return pprof.Lookup("threadcreate").Count() }
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(gate, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Error(err)
		}
		return len(open)
	}
	before, during := threads(), 0
	heldBefore, held := descriptors(), 0
	all := &lineCount{want: ranks, reached: func() {
		during, held = threads(), descriptors()
		open.Write(bytes.Repeat([]byte("\n"), ranks)) // each reads one
	}}
	o, err := Run(t.Context(), Config{Ranks: ranks, Stdout: all, Program: "sh", Args: []string{"-c", "echo there; read x <" + gate}})
	if err != nil || o.Code != 0 {
		t.Fatalf("%+v, %v", o, err)
	}
	if during-before > ranks/2 {
		t.Errorf("%d threads before, %d with %d ranks", before, during, ranks)
	}
	if held-heldBefore > 3*ranks+ranks/2 {
		t.Errorf("%d descriptors before, %d with %d ranks", heldBefore, held, ranks)
	}
}

// lineCount calls a function when so many lines have been written.
type lineCount struct {
	want    int
	reached func()
}

func (l *lineCount) Write(b []byte) (int, error) {
	if n := bytes.Count(b, []byte("\n")); n > 0 {
		if l.want -= n; l.want == 0 {
			l.reached()
		}
	}
	return len(b), nil
}

// Either way to wait for a child leaves it to be waited for.
func TestAwaitEnd(t *testing.T) {
	ends, err := watchEnds()
	if err != nil {
		t.Fatal(err)
	}
	defer ends.Close()
	for name, await := range map[string]func(*os.Process){"watching": ends.await, "looking": func(p *os.Process) { awaitByLooking(p.Pid) }} {
		cmd := exec.Command("cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if hasEnded(cmd.Process.Pid) {
			t.Errorf("%s: cat has ended before its input", name)
		}
		in.Close()
		await(cmd.Process)
		if err := cmd.Wait(); err != nil || !cmd.ProcessState.Exited() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What ranks leave to itself while they run is waited for when it ends, but no child of the program's own.
func TestOrphansAreReaped(t *testing.T) {
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children"); err != nil {
		t.Skip(err)
	}
	own := exec.Command("true")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	zombies := func() (stats []string) { // in the ranks' groups
		files, _ := filepath.Glob("/proc/self/task/*/children")
		for _, f := range files {
			text, _ := os.ReadFile(f)
			for _, pid := range strings.Fields(string(text)) {
				stat, _ := os.ReadFile("/proc/" + pid + "/stat")
				fields := strings.Fields(string(stat)) // pid (name) state parent group
				if len(fields) < 5 || fields[2] != "Z" {
					continue
				}
				if _, err := os.Stat(filepath.Join(dir, "group"+fields[4])); err == nil {
					stats = append(stats, strings.Join(fields[:5], " "))
				}
			}
		}
		return stats
	}
	left := make(chan []string, 1)
	go func() {
		look := time.Tick(10 * time.Millisecond)
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit); <-look {
			ready, _ := filepath.Glob(filepath.Join(dir, "ready*"))
			if len(ready) == 2 && len(zombies()) == 0 { // a moment passes until each is waited for
				break
			}
		}
		left <- zombies()
		os.WriteFile(filepath.Join(dir, "over"), nil, 0o644)
	}()
	o, _ := run(t, Config{Ranks: 2}, `cd `+dir+`; : >group$$; for i in $(seq 50); do (sleep 0.1 &) ; done; sleep 0.5; : >ready$$
		until [ -e over ]; do sleep 0.01; done; exit 3`)
	if z := <-left; len(z) > 0 {
		t.Errorf("%d orphans have ended and are not waited for: %q", len(z), z)
	}
	if err := own.Wait(); err != nil || o.Code != 3 || o.First == nil {
		t.Errorf("%+v; the program's own child: %v", o, err)
	}
}

// TestLauncherKilled kills the launcher by SIGKILL: its ranks end, and what
// they have started, too, also in sessions of its own.
func TestLauncherKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LAUNCH_TEST_ROLE=launcher", "LAUNCH_TEST_SCRIPT=echo $$; sleep 1000 & echo $!; setsid sleep 1000 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids strings.Builder
	buf := make([]byte, 1024)
	for strings.Count(pids.String(), "\n") < 6 {
		n, err := out.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, pids.String())
		}
		pids.Write(buf[:n])
	}
	cmd.Process.Kill()
	cmd.Wait()
	expectGone(t, pids.String())
}

// The guard kills the groups that are still there, and not those that have ended: their numbers may be others' by then.
func TestGuardForgetsWhatHasEnded(t *testing.T) {
	group := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		return cmd
	}
	first, second := group(), group()
	RunGuard(strings.NewReader(fmt.Sprintf("job\n%d\n%d\n%d\n", first.Process.Pid, second.Process.Pid, -first.Process.Pid)))
	second.Wait()
	if err := first.Process.Signal(syscall.Signal(0)); err != nil || second.ProcessState.Success() {
		t.Errorf("the group that is over: %v; the other: %v", err, second.ProcessState)
	}
}

// The launcher tells its guard of the ranks that have ended.
func TestGuardIsToldOfTheEnd(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	run(t, Config{Ranks: 2, Guard: []string{"sh", "-c", "cat >" + said}}, "true")
	b, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	there := map[int]bool{}
	_, pids, _ := strings.Cut(string(b), "\n") // after the job's name
	for _, l := range strings.Fields(strings.TrimSuffix(pids, farewell+"\n")) {
		pid, err := strconv.Atoi(l)
		if err != nil || pid > 0 == there[max(pid, -pid)] {
			t.Fatalf("the guard was told %q", b)
		}
		there[max(pid, -pid)] = pid > 0
	}
	if len(there) != 2 || there[0] {
		t.Errorf("the guard was told %q", b)
	}
	for pid, left := range there {
		if left {
			t.Errorf("the guard was not told of the end of %d", pid)
		}
	}
}

func expectGone(t *testing.T, pids string) {
	t.Helper()
	fields := strings.Fields(pids)
	if len(fields) == 0 {
		t.Fatal("no pid was printed")
	}
	for _, w := range fields {
		pid, err := strconv.Atoi(w)
		if err != nil {
			t.Fatalf("not a pid: %q", w)
		}
		if err := lab.AwaitEnd(pid, time.Minute); err != nil {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("left behind: %v", err)
		}
	}
}
