package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A crash prints the stacks of all goroutines, of which the first lines say what happened: they are what a log
// that keeps only its end would lose.

const (
	gistStart = 8  // lines of the beginning of a test's output
	gistCrash = 24 // and from each line on that tells of a crash
	gistEnd   = 16 // and of the end
)

// crash is where Go's runtime or the race detector begins to tell why a process ends, also behind the label of a rank.
var crash = regexp.MustCompile(`^\s*([\w.-]+: )?(panic: |fatal error: |runtime: |unexpected fault address|SIG[A-Z]+: |WARNING: DATA RACE)`)

// gist is the output of a test that failed without most of what is long: it says how many lines are left out.
func gist(output []string) []string {
	lines := slices.DeleteFunc(strings.SplitAfter(strings.Join(output, ""), "\n"), func(l string) bool {
		return l == "" || strings.HasPrefix(l, "=== ")
	})
	keep := make([]bool, len(lines))
	from := func(at, n int) {
		for i := max(0, at); i < min(at+n, len(lines)); i++ {
			keep[i] = true
		}
	}
	from(0, gistStart)
	from(len(lines)-gistEnd, gistEnd)
	for i, l := range lines {
		if crash.MatchString(l) {
			from(i, gistCrash)
		}
	}
	var short []string
	for i := 0; i < len(lines); {
		if keep[i] {
			short = append(short, lines[i])
			i++
			continue
		}
		left := i
		for i < len(lines) && !keep[i] {
			i++
		}
		short = append(short, fmt.Sprintf("    ... %d lines\n", i-left))
	}
	return short
}
