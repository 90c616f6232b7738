package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/launch"
)

// The test's own binary is the program when a launcher has started it.
func TestMain(m *testing.M) {
	if _, ok := os.LookupEnv("FISTERRA_RANK"); ok {
		main()
		return
	}
	os.Exit(m.Run())
}

// Processes find the line together, whatever their number. One has nobody to share the work with, and says so.
func TestFindsTheLine(t *testing.T) {
	for ranks, want := range map[int]struct {
		code int
		out  string
	}{
		1: {1, "no worker"},
		2: {0, "y = 2.000 x -1.000 after 100 steps of 1 workers\n"},
		4: {0, "y = 2.000 x -1.000 after 100 steps of 3 workers\n"},
	} {
		var out bytes.Buffer
		outcome, err := launch.Run(context.Background(), launch.Config{
			Ranks: ranks, Program: os.Args[0], Stdout: &out, Stderr: &out, Timeout: 3 * time.Minute,
		})
		if err != nil || outcome.Code != want.code || strings.Count(out.String(), want.out) != 1 {
			t.Errorf("%d ranks: %+v %v\n%s", ranks, outcome, err, &out)
		}
	}
}
