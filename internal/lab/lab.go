// Package lab is the laboratory of the tests: a real Slurm of several nodes, hosts that are
// network namespaces, and the fisterra binary itself. Everything it starts ends with the
// test that asked for it, also when the test binary is killed.
//
// Only tests import it.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience is how long a command may run when its context has no deadline of its own.
const Patience = 3 * time.Minute

// Result is what a command that has ended left.
type Result struct {
	Stdout, Stderr string
	Code           int   // exit code; 128+n after signal n; 124 when its time was up
	Err            error // nil if it ran to its end, whatever its code
}

// String is for messages of failed tests.
func (r Result) String() string {
	return fmt.Sprintf("exit %d (%v)\nstdout: %s\nstderr: %s", r.Code, r.Err, r.Stdout, r.Stderr)
}

// Cmd is a command of this package: its process group ends with its context. Set Stdin,
// Env and so on as with os/exec, then Run it, or Start it and Wait.
type Cmd struct {
	*exec.Cmd
	ctx context.Context
}

// Command prepares a process that may start others. When ctx ends all of its group is told
// to terminate (srun then ends its step; killed, it would leave that behind) and killed ten
// seconds later. A ctx without a deadline gets one, Patience from now.
func Command(ctx context.Context, t testing.TB, name string, args ...string) *Cmd {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		t.Cleanup(cancel)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		group := -cmd.Process.Pid
		time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(group, syscall.SIGKILL) })
		return syscall.Kill(group, syscall.SIGTERM)
	}
	cmd.WaitDelay = 15 * time.Second
	return &Cmd{cmd, ctx}
}

// Run runs the command to its end and collects its output.
func (c *Cmd) Run() Result {
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Cmd.Run()
	r := Result{Stdout: out.String(), Stderr: errs.String()}
	var exit *exec.ExitError
	switch {
	case err != nil && c.ctx.Err() != nil:
		r.Code, r.Err = 124, c.ctx.Err()
	case errors.As(err, &exit):
		status := exit.Sys().(syscall.WaitStatus)
		if r.Code = status.ExitStatus(); status.Signaled() {
			r.Code = 128 + int(status.Signal())
		}
	case err != nil:
		r.Code, r.Err = -1, err
	}
	return r
}

// Root is the directory of the module.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("lab: no go.mod in this directory or above")
		}
		dir = up
	}
}

// build makes the binary at most once per test process.
var build = sync.OnceValues(func() (built, error) {
	root, err := Root()
	if err != nil {
		return built{}, err
	}
	dir, alive, err := processDir()
	if err != nil {
		return built{}, err
	}
	binary := filepath.Join(dir, "fisterra")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/fisterra")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return built{}, fmt.Errorf("lab: go build ./cmd/fisterra: %w\n%s", err, out)
	}
	return built{binary, alive}, nil
})

// built is a binary in a directory that is removed when alive is closed, also
// by the garbage collector: it must be kept.
type built struct {
	binary string
	alive  io.Closer
}

// Fisterra builds the fisterra command without C, once per test process, and returns its
// path. Every user of this machine may run it.
func Fisterra(t testing.TB) string {
	t.Helper()
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return b.binary
}

// processDir makes a directory that lives as long as this process, or until alive is
// closed: a shell waits for the end of that pipe, and then removes it.
func processDir() (dir string, alive io.Closer, err error) {
	if dir, err = os.MkdirTemp("", "fisterra-test."); err != nil {
		return "", nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", nil, err
	}
	janitor := exec.Command("sh", "-c", `read -r _; rm -rf "$1"`, "sh", dir)
	janitor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	if alive, err = janitor.StdinPipe(); err != nil {
		return "", nil, err
	}
	return dir, alive, janitor.Start()
}
