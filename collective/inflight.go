package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// What is given up may leave buffers in flight: a send, or a collective of the system's MPI library, that cannot be taken
// back, or a peer that was stopped in the middle of a copy. The caller is told by mpi.ErrInFlight, and finds one
// *mpi.Error whose Done is closed when all buffers of the call are free.

// abandon gives up all messages of the round, or the library's collective, and waits until their memory is free, or
// returns mpi.ErrInFlight for all that are still in flight.
func (x *execution) abandon() (inFlight error) {
	under := slices.Clone(x.receives)
	for i := range slices.Backward(x.outgoing) { // as settle does
		under = append(under, x.outgoing[i])
	}
	under = append(under, x.native)
	for _, r := range under {
		r.Cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	err := mpi.WaitAll(ctx, under)
	clear(x.receives)
	clear(x.outgoing)
	x.native = mpi.Request{}
	x.incoming, x.receives, x.outgoing, x.to = x.incoming[:0], x.receives[:0], x.outgoing[:0], x.to[:0]
	if errors.Is(err, mpi.ErrInFlight) {
		return err
	}
	return nil
}

// inFlightToo adds to why a call failed that buffers of it are in flight.
func inFlightToo(why, inFlight error) error {
	var first, at *mpi.Error
	if !errors.As(why, &first) || !errors.As(inFlight, &at) {
		return fmt.Errorf("%w (%w)", why, inFlight)
	}
	// A caller takes peer and Done from the first *mpi.Error that it finds.
	one := *first
	one.Err = fmt.Errorf("%w (%w)", first.Err, inFlight)
	one.Done = bothDone(first.Done, at.Done)
	return &one
}

// bothDone is closed when both channels are; nil stands for one that is.
func bothDone(a, b <-chan struct{}) <-chan struct{} {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	done := make(chan struct{})
	go func() {
		<-a
		<-b
		close(done)
	}()
	return done
}

// forOthers is why a call failed, for other calls, which have none of its buffers.
func forOthers(why error) error {
	if errors.Is(why, mpi.ErrInFlight) {
		return buffersApart{why}
	}
	return why
}

// buffersApart is an error without what it says of buffers in flight.
type buffersApart struct{ error }

func (e buffersApart) Is(target error) bool {
	return target != mpi.ErrInFlight && errors.Is(e.error, target)
}

func (e buffersApart) As(target any) bool {
	if !errors.As(e.error, target) {
		return false
	}
	if at, ok := target.(**mpi.Error); ok {
		apart := **at
		apart.Err, apart.Done = forOthers(apart.Err), nil
		*at = &apart
	}
	return true
}
