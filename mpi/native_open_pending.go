package mpi

import (
	"context"
	"fmt"
)

// To be removed by the change that adds openNative.
func openNative(context.Context, *Config, *launch) (*World, error) {
	return nil, fmt.Errorf("mpi: %w: built without the system's MPI library", ErrTransport)
}
