package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"
)

// busy gives the profiler something to see: it ends when this process has used so much of a processor, however
// long the machine takes to give it that.
func busy(t *testing.T, spent time.Duration) (n int) {
	for until := used(t) + spent; used(t) < until; {
		for range 1_000_000 { // between calls to the kernel
			n++
		}
	}
	return n
}

// used is what this process has used of the processors in its own code.
func used(t *testing.T) time.Duration {
	t.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano())
}

// recorded writes a profile of this process, of whose time on a processor so much was spent in busy.
func recorded(t *testing.T, path string, spent time.Duration) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := pprof.StartCPUProfile(f); err != nil {
		t.Fatal(err)
	}
	busy(t, spent)
	pprof.StopCPUProfile()
}

// The sum has the calls and the lines of all profiles, by which the compiler goes, and nothing of the machine.
func TestMerge(t *testing.T) {
	dir := t.TempDir()
	a, b, out := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "out")
	recorded(t, a, 300*time.Millisecond)
	recorded(t, b, 300*time.Millisecond)
	if code := run([]string{"-o", out, a, b}, t.Output()); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var samples int
	for _, path := range []string{a, b} {
		p, err := read(path)
		if err != nil {
			t.Fatal(err)
		}
		samples += total(p)
	}
	sum, err := read(out)
	if err != nil {
		t.Fatal(err)
	}
	if total(sum) != samples || samples == 0 {
		t.Errorf("%d samples of %d", total(sum), samples)
	}
	found := false
	for _, f := range sum.Function {
		found = found || strings.HasSuffix(f.Name, "/internal/pgo.busy") && f.StartLine > 0
	}
	if !found {
		t.Errorf("no function busy with its line in %v", sum.Function)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if text := sum.String(); strings.Contains(text, here) || strings.Contains(text, dir) || strings.Contains(text, os.TempDir()) {
		t.Errorf("the profile tells of the machine:\n%s", text)
	}
}

func total(p *profile.Profile) (samples int) {
	for _, s := range p.Sample {
		samples += int(s.Value[0])
	}
	return samples
}

func TestMergeMistakes(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no profile"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"nothing to merge": {[]string{"-o", filepath.Join(dir, "out")}, 2, "profiles to merge"},
		"no output":        {[]string{text}, 2, "-o FILE"},
		"another flag":     {[]string{"-q"}, 2, "-q"},
		"gone":             {[]string{"-o", filepath.Join(dir, "out"), filepath.Join(dir, "gone")}, 1, "gone"},
		"no profile":       {[]string{"-o", filepath.Join(dir, "out"), text}, 1, text},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			if code := run(c.args, &said); code != c.code || !strings.Contains(said.String(), c.says) {
				t.Errorf("exit code %d: %s", code, said.String())
			}
		})
	}
}
