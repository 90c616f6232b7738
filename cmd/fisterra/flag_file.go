package main

import (
	"fmt"
	"io"

	"github.com/fisterra-hpc/fisterra/internal/wholefile"
)

// writeFlagFile writes the file that a flag names with what measure finds. Measuring may take long, so it begins
// only if the file can be written.
func writeFlagFile(flag, path string, measure func(io.Writer) error) error {
	var failed error
	err := wholefile.Replace(path, func(w io.Writer) error {
		failed = measure(w)
		return failed
	})
	if err != nil && failed == nil {
		return usageError(fmt.Errorf("%s: %w", flag, err))
	}
	return err
}
