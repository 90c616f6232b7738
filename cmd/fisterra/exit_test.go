package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/mpi/launch"
	"github.com/fisterra-hpc/fisterra/slurm"
)

// A file system that fails is not what the user got wrong; one that he may not write to is.
func TestFailingDiskIsNoUsageError(t *testing.T) {
	for err, want := range map[error]int{syscall.ENOSPC: exitFailed, syscall.EDQUOT: exitFailed, syscall.EIO: exitFailed, syscall.ESTALE: exitFailed,
		syscall.EACCES: exitUsage, syscall.ENOENT: exitUsage, syscall.EROFS: exitUsage} {
		err := directoryError(fmt.Errorf("--checkpoint: %w", &os.PathError{Op: "write", Path: "x", Err: err}))
		if got := codeOf(t.Context(), err); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
}

// A file that cannot be written is called as the user calls it, by its flag.
func TestFullFileIsCalledByItsFlag(t *testing.T) {
	err := writeFlagFile("--plot", "/dev/full", func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err })
	if code := codeOf(t.Context(), err); code != exitFailed || err.Error() != "--plot /dev/full: no space left on device" {
		t.Errorf("exit code %d: %v", code, err)
	}
}

// The exit code of ranks of which some were killed follows from what they were.
func TestExitCodeAsksTheRoles(t *testing.T) {
	// A negative code is that of a rank which was asked to end.
	ended := func(codes ...int) (exits []launch.Exit) {
		for rank, code := range codes {
			x := launch.Exit{Rank: rank, Code: max(code, -code), Ended: code < 0}
			if x.Code > signalled {
				x.Signal = syscall.Signal(x.Code - signalled)
			}
			exits = append(exits, x)
		}
		return exits
	}
	for _, c := range []struct {
		name, mode, roles string
		exits             []launch.Exit
		interrupted       syscall.Signal
		want              int
	}{
		{"all is well", "async", "ps,worker,worker", ended(0, 0, 0), 0, 0},
		{"a worker is killed", "async", "ps,worker,worker", ended(0, 137, 0), 0, 0},
		{"the worker of rank 0 is killed", "async", "worker,worker,ps", ended(137, 0, 0), 0, 0},
		{"the server is killed", "async", "worker,worker,ps", ended(1, 1, 137), 0, 137},
		{"all workers are killed", "async", "ps,worker,worker", ended(0, 137, 137), 0, 137},
		{"a worker fails", "async", "ps,worker,worker", ended(0, 1, 0), 0, 1},
		{"sync", "sync", "ps,worker,worker", ended(1, 137, 1), 0, 137},
		{"without servers", "async", "worker,worker", ended(1, 137), 0, 137},
		{"SIGTERM", "async", "ps,worker,worker", ended(-143, -143, -143), syscall.SIGTERM, 143},
		{"Ctrl-C", "async", "ps,worker,worker", ended(-137, -137, -137), syscall.SIGINT, 130},
		{"a worker is killed, then SIGTERM", "async", "ps,worker,worker", ended(-3, 137, -3), syscall.SIGTERM, 143},
		{"the server fails, then Ctrl-C", "async", "ps,worker,worker", ended(1, -3, -3), syscall.SIGINT, 1},
	} {
		roles, err := slurm.ParseRoles(c.roles)
		if err != nil {
			t.Fatal(err)
		}
		o := launch.Outcome{Exits: c.exits, Interrupted: c.interrupted}
		for _, x := range c.exits {
			if !x.Ended {
				o.Code = max(o.Code, x.Code)
			}
		}
		if got := (&trainFlags{mode: c.mode, roles: roleFlags{list: c.roles}}).codeOf(o, roles); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// startAlone is a rank of two, in this process, whose other never comes.
func startAlone(t *testing.T, rank int, stderr io.Writer, args ...string) int {
	t.Helper()
	var secret [2]int
	if err := unix.Pipe(secret[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(secret[1], make([]byte, 32)); err != nil {
		t.Fatal(err)
	}
	unix.Close(secret[1])
	vars := map[string]string{"FISTERRA_RANK": strconv.Itoa(rank), "FISTERRA_SIZE": "2", "FISTERRA_JOB": "alone",
		"FISTERRA_ROOT": "127.0.0.1:0", "FISTERRA_SECRET_FD": strconv.Itoa(secret[0])}
	return run(args, environment{stdin: strings.NewReader(""), stdout: io.Discard, stderr: stderr,
		lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok }})
}

// Every rank of a start that takes too long ends with the code for that.
func TestStartTimeoutHasItsCode(t *testing.T) {
	for rank := range 2 {
		var errs testlog.Buffer
		if code := startAlone(t, rank, &errs, "info", "--start-timeout", "200ms"); code != exitTimeout || !strings.Contains(errs.String(), "have not met within 200ms") {
			t.Errorf("rank %d: exit code %d: %s", rank, code, errs.String())
		}
	}
}

func TestSigtermHasItsCode(t *testing.T) {
	for rank := range 2 {
		for _, command := range []string{"info", "bench latency"} {
			var errs testlog.Buffer
			ended := make(chan int)
			go func() {
				ended <- startAlone(t, rank, &errs, append(strings.Fields(command), "--start-timeout", "10m", "-v")...)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), longWait)
			if err := errs.Await(ctx, func(text string) bool { return strings.Contains(text, "msg=transport") }); err != nil {
				t.Error(err)
			} else if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			cancel()
			if code := <-ended; code != signalled+int(syscall.SIGTERM) {
				t.Errorf("%s as rank %d: exit code %d: %s", command, rank, code, errs.String())
			}
		}
	}
}

// A host without processes to spare is no wrong command line.
func TestStartErrorHasItsCode(t *testing.T) {
	for cause, want := range map[error]int{exec.ErrNotFound: exitUsage, syscall.ENOENT: exitUsage, syscall.EACCES: exitUsage, syscall.ENOEXEC: exitUsage, syscall.EROFS: exitUsage,
		syscall.EAGAIN: exitFailed, syscall.ENOMEM: exitFailed, syscall.EMFILE: exitFailed} {
		if got := codeOf(t.Context(), startError(fmt.Errorf("%w rank 3: %w", launch.ErrStart, cause))); got != want {
			t.Errorf("%v: %d, want %d", cause, got, want)
		}
	}
	if got := codeOf(t.Context(), startError(io.EOF)); got != exitFailed {
		t.Errorf("another error: %d, want %d", got, exitFailed)
	}
}

// What can be neither read nor written is an error of usage, told before a rank has work.
func TestFilesOfTrain(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket") // which not even root can open
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := (&trainFlags{data: socket}).checkData(); err == nil || !strings.Contains(err.Error(), "--data: not") { // run makes it one of usage
		t.Errorf("--data %s: %v", socket, err)
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "worker0.log"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{plain, dir} {
		_, _, err := (&trainFlags{out: out}).openLog(environment{stderr: io.Discard}, nil, "worker0")
		if code := codeOf(t.Context(), err); code != exitUsage || !strings.Contains(err.Error(), "--out: ") {
			t.Errorf("--out %s: exit code %d: %v", out, code, err)
		}
	}
}

func TestCodeOf(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"nothing", ended, nil, exitOK},
		{"a failure", t.Context(), io.ErrUnexpectedEOF, exitFailed},
		{"usage", t.Context(), fmt.Errorf("x: %w", usageError(io.EOF)), exitUsage},
		{"a signal", ended, fmt.Errorf("x: %w", context.Canceled), 143},
		{"a signal behind another name", ended, usageError(fmt.Errorf("x: %w", context.Canceled)), 143},
		{"a failure after a signal", ended, io.ErrUnexpectedEOF, exitFailed},
		{"a signal that is named", ended, &exitError{138, context.Canceled}, 138},
		{"the ranks' code", ended, &exitError{code: 3}, 3},
	} {
		if got := codeOf(c.ctx, c.err); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
