package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	events := `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"noise of a test that passed\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0}
{"Action":"run","Package":"m/a","Test":"TestIdle"}
{"Action":"output","Package":"m/a","Test":"TestIdle","Output":"=== RUN   TestIdle\n"}
{"Action":"output","Package":"m/a","Test":"TestIdle","Output":"    a_test.go:7: slurm absent: no slurmctld\n"}
{"Action":"output","Package":"m/a","Test":"TestIdle","Output":"--- SKIP: TestIdle (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestIdle","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.002s\n"}
{"Action":"pass","Package":"m/a","Elapsed":0.002}
{"Action":"start","Package":"m/b"}
{"Action":"run","Package":"m/b","Test":"TestBad"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"    b_test.go:9: two is not three\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad","Elapsed":0}
{"Action":"run","Package":"m/b","Test":"TestCrash"}
{"Action":"output","Package":"m/b","Test":"TestCrash","Output":"panic: it crashed\n"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t0.002s\n"}
{"Action":"fail","Package":"m/b","Elapsed":0.002}
plain words of go test
{"ImportPath":"m/c","Action":"build-output","Output":"c.go:1: syntax error\n"}
`
	var out bytes.Buffer
	s := newSummary(&out)
	for line := range strings.Lines(events) {
		s.line([]byte(line))
	}
	if s.close(nil) {
		t.Error("passed")
	}
	want := `ok  	m/a	0.002s
    b_test.go:9: two is not three
panic: it crashed
FAIL	m/b	0.002s
plain words of go test
c.go:1: syntax error

skipped (1), by reason:
  slurm absent: no slurmctld
    m/a TestIdle

failed:
  m/b TestBad
    b_test.go:9: two is not three
  m/b TestCrash, running when it ended
panic: it crashed

FAIL: 1 tests passed, 1 failed, 1 skipped; packages: 1 ok, 1 failed
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

// What go test has said nothing of has not passed.
func TestNoVerdictIsNoPass(t *testing.T) {
	running := `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestSlow"}
{"Action":"output","Package":"m/a","Test":"TestSlow","Output":"    said so far\n"}
`
	for name, tc := range map[string]struct {
		events string
		ended  error
		want   string
	}{
		"killed": {running, errors.New("signal: terminated"),
			"    said so far\nfailed:\n  m/a has no verdict\n  m/a TestSlow, running when it ended\n    said so far\n\nFAIL: 0 tests passed, 0 failed, 0 skipped; packages: 0 ok, 1 failed\n"},
		"no word of it":    {running, nil, "FAIL: "},
		"no event at all":  {"", errors.New("exit status 2"), "failed:\n  go test: exit status 2\n\nFAIL: 0 tests passed, 0 failed, 0 skipped; packages: 0 ok, 0 failed\n"},
		"a good beginning": {`{"Action":"start","Package":"m/a"}` + "\n" + `{"Action":"pass","Package":"m/a"}` + "\n", errors.New("exit status 1"), "FAIL: "},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := newSummary(&out)
			for line := range strings.Lines(tc.events) {
				s.line([]byte(line))
			}
			if s.close(tc.ended) || !strings.Contains(out.String(), tc.want) {
				t.Errorf("got:\n%s\nwant:\n%s", out.String(), tc.want)
			}
		})
	}
}

// A real go test of a module that fails, and of one that does not build.
func TestRunPropagatesFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		packages string
		body     string
		code     int
		want     string
	}{
		"pass":        {"./...", "func TestX(t *testing.T) {}", 0, "PASS: 1 tests passed"},
		"import path": {"x", "func TestX(t *testing.T) {}", 0, "PASS: 1 tests passed"},
		"fail":        {"./...", `func TestX(t *testing.T) { t.Error("told you") }`, 1, "told you"},
		"fail there":  {"x", `func TestX(t *testing.T) { t.Error("told you") }`, 1, "told you"},
		"crash":       {"./...", `func TestX(t *testing.T) { panic("all over") }`, 1, "all over"},
		"build":       {"./...", "func TestX(t *testing.T) { return 1 }", 1, "too many return values"},
		"no test":     {"./...", "func testX(t *testing.T) {}", 1, "no test was run"},
		"only skips":  {"./...", `func TestX(t *testing.T) { t.Skip("no moon") }`, 0, "PASS: 0 tests passed, 0 failed, 1 skipped"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module x\ngo 1.26\n")
			write(t, filepath.Join(dir, "x_test.go"), "package x\nimport \"testing\"\n"+tc.body+"\n")
			t.Chdir(dir)
			var out, errs bytes.Buffer
			if code := run([]string{"-timeout", "5m", "--", tc.packages}, &out, &errs); code != tc.code {
				t.Errorf("exit %d, want %d", code, tc.code)
			}
			if !strings.Contains(out.String(), tc.want) {
				t.Errorf("output lacks %q:\n%s%s", tc.want, out.String(), errs.String())
			}
		})
	}
}

// go test refuses a time without a unit.
func TestRefusedIsNoPass(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"-timeout", "840", "--", "."}, &out, &errs); code != 2 || !strings.Contains(out.String(), "FAIL: ") {
		t.Errorf("exit %d: %s%s", code, out.String(), errs.String())
	}
}

// What tests nothing has not passed.
func TestNothingIsNoPass(t *testing.T) {
	for _, args := range [][]string{nil, {"-run", "X"}, {"-run", "X", "--"}, {"--"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 2 || !strings.Contains(errs.String(), "nothing to test") {
			t.Errorf("%q: exit %d: %s%s", args, code, out.String(), errs.String())
		}
	}
	fuzz, err := exec.Command("../../scripts/fuzz.sh", "1s", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(fuzz), "no targets") {
		t.Errorf("fuzzing nothing: %v: %s", err, fuzz)
	}
}

// The log of `make fuzz >log 2>&1` has everything, in order.
func TestFuzzLogIsWhole(t *testing.T) {
	dir := t.TempDir()
	targets, fake := filepath.Join(dir, "targets"), filepath.Join(dir, "go")
	if err := os.Mkdir(targets, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(targets, "x_test.go"), "func FuzzA(f *testing.F) {}\nfunc FuzzB(f *testing.F) {}\n")
	write(t, fake, "#!/bin/sh\necho output of $5\nprintf 'no end'\n")
	if err := os.Chmod(fake, 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("../../scripts/fuzz.sh", "1s", targets)
	cmd.Env = append(os.Environ(), "GO="+fake)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("fuzz: %[1]s FuzzA 1s\noutput of ^FuzzA$\nno end\nfuzz: %[1]s FuzzB 1s\noutput of ^FuzzB$\nno end\nfuzz: 2 targets passed\n", targets)
	if string(got) != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
