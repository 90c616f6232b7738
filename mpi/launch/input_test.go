package launch

// Whose the standard input is.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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

// Nothing of the pipe stays open where rank 0 cannot be started, whenever there is a garbage collection.
func TestInputOfARankThatIsNotStarted(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	pipes := func() map[string]bool {
		found := map[string]bool{}
		files, _ := filepath.Glob("/proc/self/fd/*")
		for _, f := range files {
			if target, err := os.Readlink(f); err == nil && strings.HasPrefix(target, "pipe:") {
				found[target] = true
			}
		}
		return found
	}
	before := pipes()
	noLog := errors.New("no log")
	_, err := Run(t.Context(), Config{
		Ranks: 1, Program: "true", Stdin: strings.NewReader("one"),
		Tee: func(int) (io.WriteCloser, error) { return nil, noLog },
	})
	if !errors.Is(err, noLog) || !errors.Is(err, ErrStart) {
		t.Fatal(err)
	}
	var left []string
	look := time.Tick(10 * time.Millisecond)
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); <-look { // whoever copies ends a moment later
		left = nil
		for pipe := range pipes() {
			if !before[pipe] {
				left = append(left, pipe)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("%q are still open", left)
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
