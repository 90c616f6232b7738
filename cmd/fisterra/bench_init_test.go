package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		x    []float64
		want spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{4, 1}, spread{1, 2.5, 4}},
		{[]float64{9, 1, 2}, spread{1, 2, 9}},
	} {
		if got := spreadOf(slices.Clone(c.x)); got != c.want {
			t.Errorf("spread of %v: %v, want %v", c.x, got, c.want)
		}
	}
}

func TestBenchInit(t *testing.T) {
	since := fmt.Sprintf("%.3f", float64(time.Now().UnixMilli())/1e3)
	r := fisterra(t, "bench", "init", "-n", "3", "--since", since, "--format", "json")
	var x initReport
	if err := json.Unmarshal([]byte(r.Stdout), &x); err != nil || r.Code != 0 {
		t.Fatalf("%v: %v", err, r)
	}
	if x.Ranks != 3 || x.Hosts != 1 || x.Launcher != "fisterra" || x.Since == nil {
		t.Errorf("%+v", x)
	}
	// Each is measured on its own: a process is a part of the run, joining a part of being ready.
	if x.Joined.Min <= 0 || x.Joined.Min > x.Joined.Median || x.Joined.Median > x.Joined.Max || x.Ready.Max < x.Joined.Max || *x.Since < x.Ready.Max-0.02 {
		t.Errorf("times do not fit each other: %s", r.Stdout)
	}
	if r := fisterra(t, "bench", "init"); r.Code != 0 || !strings.Contains(r.Stdout, "# 2 ranks on 1 hosts") || strings.Contains(r.Stdout, "--since") {
		t.Error(r)
	}
	for _, args := range [][]string{{"--since", "yesterday"}, {"--since", "NaN"}, {"--since", "inf"}, {"--since", fmt.Sprint(time.Now().UnixMilli())}, {"-n", "0"}, {"--format", "xml"}} {
		if r := fisterra(t, append([]string{"bench", "init"}, args...)...); r.Code != exitUsage || !strings.Contains(r.Stderr, args[1]) {
			t.Errorf("%v: %v", args, r)
		}
	}
}
