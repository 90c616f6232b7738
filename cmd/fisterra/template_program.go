package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/fisterra-hpc/fisterra/slurm"
)

// The program that a script of template slurm starts, and where the nodes find it.

// setProgram puts the path of the program where the job has only a name for it.
func (t *templateFlags) setProgram(b *slurm.Batch) error {
	program := t.program
	if len(b.Command) == 0 {
		b.Command = []string{"fisterra", "train"}
	}
	if program == "" {
		if b.Command[0] != "fisterra" {
			return nil
		}
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("this program's own path, for lack of --program: %w", err)
		}
		if isGoRuns(self) {
			return fmt.Errorf("the script would start this program, %s, which go run has built for itself and deletes: "+
				"give one that stays by --program, or start bin/fisterra, which make build makes", self)
		}
		program = self
	}
	b.Command = append([]string{program}, b.Command[1:]...)
	return nil
}

// goRuns is where go run builds programs: in a directory that it removes afterwards or, when it has built the same
// before, in its cache.
var goRuns = regexp.MustCompile(`/go-build[0-9]+/b[0-9]+/exe/[^/]+$|/[0-9a-f]{2}/[0-9a-f]{64}-d/[^/]+$`)

func isGoRuns(program string) bool { return goRuns.MatchString(program) }

// isBelow reports whether a file lies in a directory or below it. A name without a path, which
// is looked up in PATH, does not.
func isBelow(file, dir string) bool {
	rel, err := filepath.Rel(dir, file)
	return err == nil && filepath.IsLocal(rel)
}
