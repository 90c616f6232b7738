package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestRequired(t *testing.T) {
	for _, c := range []struct {
		list, part string
		required   bool
		says       string // of an error
	}{
		{"", "slurm", false, ""},
		{"slurm,mpich", "slurm", true, ""},
		{"slurm,mpich", "openmpi", false, ""},
		{"all", "munge", true, ""},
		{"all", "avx2", false, ""},
		{"all,avx2", "avx2", true, ""},
		{"slrum", "mpich", false, `FISTERRA_REQUIRE=slrum names "slrum"; the parts are slurm,`},
		{"all", "mpi", false, `"mpi" is no part; the parts are slurm,`},
	} {
		required, err := isRequired(c.list, c.part)
		if required != c.required || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s with %q: %v, %v; want %v, %q", c.part, c.list, required, err, c.required, c.says)
		}
	}
}

const seekVariable = "FISTERRA_TEST_NEED_SEEK"

// TestSeek is what TestProgram runs: it needs a program, and passes where that is.
func TestSeek(t *testing.T) {
	name, ok := os.LookupEnv(seekVariable)
	if !ok {
		t.Skip("a part of TestProgram")
	}
	t.Log("found", Program(t, "cc", "no-such-program", name))
}

// What one finds passes; what one does not find skips, or fails where it is required.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "fisterra-seek")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, required, says string }{
		{"fisterra-seek", "all", "found " + program},
		{"fisterra-sought", "", "cc absent: no no-such-program or fisterra-sought in PATH"},
		{"fisterra-sought", "slurm", "cc absent: no no-such-program or fisterra-sought in PATH"},
		{"fisterra-sought", "all", "cc is required by FISTERRA_REQUIRE but absent: no no-such-program or fisterra-sought"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeek$", "-test.v")
		cmd.Env = append(os.Environ(), "PATH="+dir, seekVariable+"="+c.name, Variable+"="+c.required)
		out, err := cmd.CombinedOutput()
		if failed := strings.Contains(c.says, "is required"); failed != (err != nil) || !strings.Contains(string(out), c.says) {
			t.Errorf("%+v: %v\n%s", c, err, out)
		}
	}
}
