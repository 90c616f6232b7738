// Package need decides whether a test may run without an optional part of the
// machine: a real Slurm, an MPI library, a C compiler, root.
//
// A test that lacks its part skips and says so. FISTERRA_REQUIRE names parts
// (comma separated) whose absence is a failure instead, or all of them by the word all, so that a
// machine which is meant to have everything cannot pass by skipping. It also knows whether the race
// detector is on (RaceDetector), under which some tests would measure the detector.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Variable is the environment variable that lists the required parts.
const Variable = "FISTERRA_REQUIRE"

// all stands in Variable for every part that a machine can be given.
const all = "all"

// Parts are what a machine can be given for the tests: scripts/install-parts.sh installs
// them, but for namespaces and root, which are rights. The race detector is asked for by scripts/check.sh.
func Parts() []string {
	return []string{"slurm", "munge", "openmpi", "mpich", "pmix", "gloo", "cc", "race", "netns", "root"}
}

// processorParts are those that only another machine has.
func processorParts() []string { return []string{"avx2"} }

// Part ends the test unless the named part is present. why says what was looked
// for and not found; it is empty when the part is there.
func Part(t testing.TB, name, why string) {
	t.Helper()
	required, err := isRequired(os.Getenv(Variable), name)
	switch {
	case err != nil:
		t.Fatal(err)
	case why == "":
	case required:
		t.Fatalf("%s is required by %s but absent: %s", name, Variable, why)
	default:
		t.Skipf("%s absent: %s", name, why)
	}
}

// isRequired reports whether the list of required parts names this one.
func isRequired(list, name string) (bool, error) {
	known := append(Parts(), processorParts()...)
	if !slices.Contains(known, name) {
		return false, fmt.Errorf("need: %q is no part; the parts are %s", name, strings.Join(known, ", "))
	}
	required := false
	for _, word := range strings.Split(list, ",") {
		switch {
		case word == "":
		case word == all:
			required = required || slices.Contains(Parts(), name)
		case !slices.Contains(known, word):
			return false, fmt.Errorf("%s=%s names %q; the parts are %s, or %s", Variable, list, word, strings.Join(known, ", "), all)
		default:
			required = required || word == name
		}
	}
	return required, nil
}

// Program returns the path of the first of some programs that this machine has, in PATH or
// where daemons are, and ends the test, as Part does, where it has none of them.
func Program(t testing.TB, part string, names ...string) string {
	t.Helper()
	var path string
	why := "no " + strings.Join(names, " or ") + " in PATH"
	for _, name := range names {
		for _, at := range []string{name, "/usr/sbin/" + name} {
			if found, err := exec.LookPath(at); err == nil && path == "" {
				path, why = found, ""
			}
		}
	}
	Part(t, part, why)
	return path
}
