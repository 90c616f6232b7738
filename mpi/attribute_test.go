package mpi_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// TestAttributeMadeOfItsCommunicator: what a library keeps with a communicator may be made by calls of that communicator.
func TestAttributeMadeOfItsCommunicator(t *testing.T) {
	var key, other mpi.Keyval
	onEach(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		var err error
		private := func() any {
			var dup *mpi.Comm
			dup, err = c.Dup(ctx)
			return dup
		}
		first := c.Attribute(&key, private).(*mpi.Comm)
		if err != nil {
			return err
		}
		if again := c.Attribute(&key, private); again != first {
			return errors.New("made a second time")
		}
		if c.Attribute(&other, func() any { return 1 }) != 1 {
			return errors.New("one keyval names another's attribute")
		}
		first.Free()
		return nil
	})
}
