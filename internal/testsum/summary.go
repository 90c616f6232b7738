package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json` (see go doc test2json).
type event struct {
	Time    time.Time
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

// summary turns go test's events into its plain lines and remembers what was skipped.
type summary struct {
	out      io.Writer
	packages map[string]*pkg
	skipped  []skip
	broken   []failure
	passed   int
	failed   int
	good     int // packages
	bad      int
}

type pkg struct {
	tests   map[string]*test
	output  []string // of the package itself, outside of any test
	verdict string   // its closing line: ok, FAIL, ? ... no test files
}

type test struct {
	output  []string
	started time.Time
}

type skip struct{ pkg, test, reason string }

// failure is a test that failed, or was running when its binary or go test ended; or what else failed, without a gist.
type failure struct {
	pkg, test string
	gist      []string
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, packages: map[string]*pkg{}}
}

// line takes one line of go test's standard output and reports whether it printed anything.
func (s *summary) line(line []byte) bool {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(s.out, "%s", line) // not an event: go test itself speaks
		return true
	}
	if e.Action == "build-output" {
		fmt.Fprint(s.out, e.Output)
		return true
	}
	if e.Package == "" {
		return false
	}
	p := s.packages[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]*test{}}
		s.packages[e.Package] = p
	}
	if e.Test == "" {
		return s.packageEvent(p, e)
	}
	return s.testEvent(p, e)
}

func (s *summary) testEvent(p *pkg, e event) bool {
	t := p.tests[e.Test]
	if t == nil {
		t = &test{started: e.Time}
		p.tests[e.Test] = t
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass":
		s.passed++
		delete(p.tests, e.Test)
	case "skip":
		s.skipped = append(s.skipped, skip{e.Package, e.Test, reason(t.output)})
		delete(p.tests, e.Test)
	case "fail":
		s.failed++
		s.fail(e.Package, e.Test, t.output)
		delete(p.tests, e.Test)
		return true
	}
	return false
}

func (s *summary) packageEvent(p *pkg, e event) bool {
	switch e.Action {
	case "output":
		if verdict(e.Output) {
			p.verdict = e.Output
		} else {
			p.output = append(p.output, e.Output)
		}
		return false
	case "pass", "skip":
		s.good++
	case "fail":
		s.failPackage(e.Package)
	default:
		return false
	}
	fmt.Fprint(s.out, p.verdict)
	delete(s.packages, e.Package)
	return true
}

// failPackage counts a package as failed. A test of it without a verdict of its own was running when its binary, or go test, ended.
func (s *summary) failPackage(name string) {
	s.bad++
	p := s.packages[name]
	for _, test := range slices.Sorted(maps.Keys(p.tests)) {
		s.fail(name, test+", running when it ended", p.tests[test].output)
	}
	s.print(p.output)
}

// heartbeat names what is running, for a run that has been silent for a while.
func (s *summary) heartbeat(now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(s.packages)) {
		for test, t := range s.packages[name].tests {
			if !t.started.IsZero() && !strings.Contains(test, "/") {
				fmt.Fprintf(s.out, "...\t%s\t%s has been running for %.0fs\n", name, test, now.Sub(t.started).Seconds())
			}
		}
	}
}

// fail prints what a test said, and keeps the gist of it for the end.
func (s *summary) fail(pkg, test string, output []string) {
	s.print(output)
	s.broken = append(s.broken, failure{pkg, test, gist(output)})
}

// close prints the closing lines: what was skipped and why, what failed, then the counts. It is given how go test ended,
// and reports whether all has passed.
func (s *summary) close(ended error) bool {
	for _, name := range slices.Sorted(maps.Keys(s.packages)) {
		s.broken = append(s.broken, failure{pkg: name, test: "has no verdict"})
		s.failPackage(name)
	}
	idle := s.passed+s.failed+len(s.skipped) == 0
	switch {
	case s.bad > 0:
	case ended != nil:
		s.broken = append(s.broken, failure{pkg: "go test:", test: ended.Error()})
	case idle:
		s.broken = append(s.broken, failure{pkg: "go test:", test: "no test was run; want packages with tests, and a -run that fits some"})
	}
	if len(s.skipped) > 0 {
		fmt.Fprintf(s.out, "\nskipped (%d), by reason:\n", len(s.skipped))
		byReason := map[string][]string{}
		for _, k := range s.skipped {
			byReason[k.reason] = append(byReason[k.reason], k.pkg+" "+k.test)
		}
		for _, why := range slices.Sorted(maps.Keys(byReason)) {
			fmt.Fprintf(s.out, "  %s\n", why)
			for _, name := range byReason[why] {
				fmt.Fprintf(s.out, "    %s\n", name)
			}
		}
		fmt.Fprintln(s.out)
	}
	if len(s.broken) > 0 {
		fmt.Fprintln(s.out, "failed:")
		for _, f := range s.broken {
			fmt.Fprintf(s.out, "  %s %s\n", f.pkg, f.test)
			s.print(f.gist)
		}
		fmt.Fprintln(s.out)
	}
	passed := ended == nil && s.bad == 0 && s.failed == 0 && !idle
	word := "FAIL"
	if passed {
		word = "PASS"
	}
	fmt.Fprintf(s.out, "%s: %d tests passed, %d failed, %d skipped; packages: %d ok, %d failed\n",
		word, s.passed, s.failed, len(s.skipped), s.good, s.bad)
	return passed
}

func (s *summary) print(lines []string) {
	for _, l := range lines {
		if !strings.HasPrefix(l, "=== ") {
			fmt.Fprint(s.out, l)
		}
	}
}

// verdict tells a package's closing line from what its tests printed outside of themselves.
func verdict(line string) bool {
	for _, start := range []string{"ok  \t", "FAIL\t", "?   \t", "---\t"} {
		if strings.HasPrefix(line, start) {
			return true
		}
	}
	return strings.HasPrefix(line, "\t") && strings.Contains(line, "coverage:")
}

// reason is what a test said when it skipped: its last line of output that is not a frame
// of go test's own, without the file and line.
func reason(output []string) string {
	why := ""
	for _, l := range output {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(l, "--- SKIP") {
			continue
		}
		why = l
	}
	if file, rest, ok := strings.Cut(why, ": "); ok && strings.Contains(file, ".go:") {
		why = rest
	}
	if why == "" {
		return "no reason given"
	}
	return why
}
