// Package need decides whether a test may run without an optional part of the
// machine: a real Slurm, an MPI library, RDMA verbs, root.
//
// A test that lacks its part skips and says so. FISTERRA_REQUIRE names parts
// (comma separated) whose absence is a failure instead, so that a machine which
// is meant to have everything cannot pass by skipping. It also knows whether the race detector is on
// (RaceDetector), under which some tests would measure the detector.
package need

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Variable is the environment variable that lists the required parts.
const Variable = "FISTERRA_REQUIRE"

// Part ends the test unless the named part is present. why says what was looked
// for and not found; it is empty when the part is there.
func Part(t testing.TB, name, why string) {
	t.Helper()
	if why == "" {
		return
	}
	if Required(name) {
		t.Fatalf("%s is required by %s but absent: %s", name, Variable, why)
	}
	t.Skipf("%s absent: %s", name, why)
}

// Required reports whether the named part must be present.
func Required(name string) bool {
	return slices.Contains(strings.Split(os.Getenv(Variable), ","), name)
}
