package collective

import (
	"context"
	"errors"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// TestWaitAllTellsOfBuffersInFlight: an earlier error does not hide that buffers of later requests are in flight, and Done
// waits for those of all.
func TestWaitAllTellsOfBuffersInFlight(t *testing.T) {
	failed := Request{err: &mpi.Error{Op: "allreduce", Err: mpi.ErrMismatch}}
	one, two := make(chan struct{}), make(chan struct{})
	inFlight := func(done <-chan struct{}) Request {
		return Request{err: &mpi.Error{Op: "bcast", Err: mpi.ErrInFlight, Done: done}}
	}
	var dones []<-chan struct{}
	for name, rs := range map[string][]Request{
		"behind another error": {failed, inFlight(one), {}, inFlight(two)},
		"first":                {inFlight(one), failed, inFlight(two)},
		"behind a spent one":   {{err: errSpent}, inFlight(one), inFlight(two)},
	} {
		t.Run(name, func(t *testing.T) {
			want := rs[0].err
			err := WaitAll(context.Background(), rs)
			var at *mpi.Error
			if !errors.Is(err, mpi.ErrInFlight) || !errors.As(err, &at) || at.Done == nil {
				t.Fatalf("got %v, want ErrInFlight with Done", err)
			}
			if errors.Is(want, mpi.ErrMismatch) && !errors.Is(err, mpi.ErrMismatch) {
				t.Errorf("got %v, which hides the first error", err)
			}
			select {
			case <-at.Done:
				t.Error("Done is closed while buffers are in flight")
			default:
			}
			dones = append(dones, at.Done)
		})
	}
	close(one)
	close(two)
	for _, done := range dones {
		<-done
	}
}
