package train

import (
	"context"

	"github.com/fisterra-hpc/fisterra/ps"
)

// exchange is what a worker trains with: a parameter server, or collectives.
type exchange[F Float] interface {
	// begin fills params with the parameters to start with, and returns the global step they belong to and the step
	// that the chief began with. The chief passes the state to begin with: params, slots and its step.
	begin(ctx context.Context, params []F, slots [][]F, step int64) (global, resumed int64, err error)
	// step contributes a gradient, fetches the parameters after it and returns the global step after it.
	step(ctx context.Context, grad, params []F, c ps.Contribution) (global int64, dropped bool, err error)
	// stopped reports whether somebody asked everybody to stop.
	stopped() bool
	// alive says that this worker is there, to those that would take a long silence for its end, and is an error if they cannot
	// be reached.
	alive(ctx context.Context) error
	// barrier waits for all workers and names those that are lost or have failed by themselves, and the global step, both
	// the same to all.
	barrier(ctx context.Context) (lost []int, global int64, err error)
	// state fetches the parameters and the optimizer's vectors as they are, and returns the global step of the
	// parameters. Where others go on meanwhile, the vectors, and in Async mode also the parameters, may be of later
	// steps.
	state(ctx context.Context, params []F, slots [][]F) (int64, error)
	// finish says goodbye with a status and waits for everybody.
	finish(ctx context.Context, status, epoch int) (lost []int, err error)
}
