package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// Each rank writes where its own time went, named by its rank; a path that cannot be is an error that names it.
func TestCPUProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpu")
	for _, args := range [][]string{
		// Calls are counted, since a budget may pass without the rank having had a processor: a million take each 0.1 s at
		// the least, and there is a sample per 10 ms of the processor's time.
		{"bench", "latency", "--peer-timeout", "1m", "--sizes", "8", "-i", "1000000", "--cpuprofile", path},
		{"train", "--peer-timeout", "1m", "--workers", "1", "--epochs", "1", "--cpuprofile", path},
	} {
		if r := fisterra(t, args...); r.Code != 0 {
			t.Fatal(r)
		}
		for _, rank := range []string{"0", "1"} {
			p := readProfile(t, path+"."+rank)
			if args[0] == "bench" && !slices.ContainsFunc(p.Function, func(f *profile.Function) bool {
				return strings.HasPrefix(f.Name, "github.com/fisterra-hpc/fisterra/mpi")
			}) {
				t.Errorf("rank %s spent no time in messages: %v", rank, p.Function)
			}
			if err := os.Remove(path + "." + rank); err != nil {
				t.Error(err)
			}
		}
		gone := filepath.Join(t.TempDir(), "gone", "cpu")
		if r := fisterra(t, append(args[:len(args)-1], gone)...); r.Code != exitUsage || !strings.Contains(r.Stderr, "--cpuprofile "+gone) {
			t.Error(r)
		}
	}
}

func readProfile(t *testing.T, path string) *profile.Profile {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
