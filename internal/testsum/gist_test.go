package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What is long is left out, but never where a crash begins.
func TestGist(t *testing.T) {
	stack := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "        0: goroutine %d\n", i)
		}
		return b.String()
	}
	for name, tc := range map[string]struct {
		output     string
		want, lack []string
		lines      int
	}{
		"short":       {"    a_test.go:1: two is not three\n", []string{"two is not three"}, []string{"..."}, 1},
		"frames":      {"=== RUN   TestA\n    a_test.go:1: no\n=== PAUSE TestA\n", []string{"no"}, []string{"==="}, 1},
		"long":        {stack(100), []string{"goroutine 0\n", "goroutine 99\n", "... 76 lines"}, []string{"goroutine 50\n"}, gistStart + 1 + gistEnd},
		"crash":       {stack(40) + "        0: fatal error: fault\n" + stack(400), []string{"fatal error: fault", "... 32 lines", "... 361 lines"}, nil, gistStart + 1 + gistCrash + 1 + gistEnd},
		"many in one": {strings.Repeat("panic: again\n", 50), []string{"panic: again"}, []string{"..."}, 50},
	} {
		t.Run(name, func(t *testing.T) {
			short := gist(slices.Collect(strings.Lines(tc.output)))
			text := strings.Join(short, "")
			if len(short) != tc.lines {
				t.Errorf("%d lines, want %d:\n%s", len(short), tc.lines, text)
			}
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("lacks %q:\n%s", w, text)
				}
			}
			for _, w := range tc.lack {
				if strings.Contains(text, w) {
					t.Errorf("has %q:\n%s", w, text)
				}
			}
		})
	}
}
