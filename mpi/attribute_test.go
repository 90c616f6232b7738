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
			if c.Cached(&key) != nil {
				return errors.New("there before it is made")
			}
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
		if c.Cached(&key) != first || c.Cached(&other) != nil {
			return errors.New("what was made is not found, or what was not")
		}
		if c.Attribute(&other, func() any { return 1 }) != 1 {
			return errors.New("one keyval names another's attribute")
		}
		first.Free()
		return nil
	})
}

// counted is an attribute that counts its releases.
type counted struct{ n *int }

func (c counted) Release(error) { *c.n++ }

// withCounted is a world of one rank and a communicator there with which, and with whose shadow, something is kept whose releases are counted.
func withCounted(t *testing.T, own, shadow *int) (*mpi.World, *mpi.Comm) {
	t.Helper()
	worlds, err := mpi.Local(1, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := worlds[0].Comm().Dup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var key mpi.Keyval
	c.Attribute(&key, func() any { return counted{own} })
	c.Shadow().Attribute(&key, func() any { return counted{shadow} })
	return worlds[0], c
}

// TestFreeReleasesBothTwins: what is kept with a communicator and what is kept with its shadow is released by Free, once.
func TestFreeReleasesBothTwins(t *testing.T) {
	var own, shadow int
	w, c := withCounted(t, &own, &shadow)
	c.Free()
	if own != 1 || shadow != 1 {
		t.Errorf("Free released the communicator's %d times and the shadow's %d times", own, shadow)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if own != 1 || shadow != 1 {
		t.Errorf("Close released them again: %d, %d", own, shadow)
	}
}

// TestFreedAfterClose: what is kept with a communicator has been released by Close when Free comes, and is not again.
func TestFreedAfterClose(t *testing.T) {
	var own, shadow int
	w, c := withCounted(t, &own, &shadow)
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	c.Free()
	if own != 1 || shadow != 1 {
		t.Errorf("released the communicator's %d times and the shadow's %d times", own, shadow)
	}
}
