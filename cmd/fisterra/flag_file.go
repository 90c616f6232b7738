package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/fisterra-hpc/fisterra/internal/wholefile"
)

// writeFlagFile writes the file that a flag names with what measure finds. Measuring may take long, so it begins
// only if the file can be written.
func writeFlagFile(flag, path string, measure func(io.Writer) error) error {
	var failed error
	err := wholefile.Replace(path, func(w io.Writer) error {
		file := &stdout{w: w}
		failed = measure(file)
		if wrote := file.failure(); failed != nil && wrote != nil {
			failed = fmt.Errorf("%s %s: %w", flag, path, withoutPath(wrote))
		}
		return failed
	})
	if err != nil && failed == nil {
		return directoryError(fmt.Errorf("%s: %w", flag, err))
	}
	return err
}

// withoutPath is what went wrong with a file whose name is of no use to the user: it is there for a moment.
func withoutPath(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
