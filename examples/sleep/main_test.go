package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
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

// Whoever asks for help gets it, and no error.
func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if err := run(context.Background(), []string{"--help"}, &out, &out); err != nil {
		t.Error(err)
	}
}

// Four processes: the workers make the ten steps together and all end well.
func TestSharedStepEndsAll(t *testing.T) {
	for _, servers := range []int{1, 2} {
		t.Run(strconv.Itoa(servers), func(t *testing.T) {
			t.Parallel()
			var out, log bytes.Buffer
			// The steps are so long that a worker which a busy machine keeps from starting still finds some of them left.
			outcome, err := launch.Run(context.Background(), launch.Config{
				Ranks: servers + 3, Program: os.Args[0], Args: []string{"--ps", strconv.Itoa(servers), "--step", "2s"},
				Stdout: &out, Stderr: &log, Timeout: 3 * time.Minute,
			})
			if err != nil || outcome.Code != 0 {
				t.Fatalf("%+v %v\n%s\n%s", outcome, err, &out, &log)
			}
			seen := map[string]bool{}
			last := make([]int, 3)
			for _, m := range regexp.MustCompile(`worker (\d): global step (\d+)`).FindAllStringSubmatch(out.String(), -1) {
				if seen[m[2]] {
					t.Errorf("two workers were given step %s", m[2])
				}
				seen[m[2]] = true
				w, _ := strconv.Atoi(m[1])
				last[w], _ = strconv.Atoi(m[2])
			}
			for step := 1; step <= 10; step++ {
				if !seen[strconv.Itoa(step)] {
					t.Errorf("step %d is missing", step)
				}
			}
			// Each worker stops at the first answer of 10 or more.
			for w, at := range last {
				if at < 10 || at > 12 {
					t.Errorf("worker %d stopped at %d", w, at)
				}
			}
			for i := range servers {
				for done := 1; done <= 3; done++ {
					if line := fmt.Sprintf("ps %d received done %d of 3 from rank ", i, done); strings.Count(log.String(), line) != 1 {
						t.Errorf("%q is not there once:\n%s", line, &log)
					}
				}
			}
		})
	}
}
