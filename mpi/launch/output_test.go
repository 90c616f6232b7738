package launch

// What ranks write: whole lines, labelled, none lost, and nobody who does not take them holds the job.

import (
	"bytes"
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
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

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
