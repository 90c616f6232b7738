package collective

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Of a lost peer and buffers in flight a caller finds one error, which names the peer and is done when all buffers are free.
func TestOneErrorOfLossAndBuffers(t *testing.T) {
	const lost = 3
	held := func() (*mpi.Error, chan struct{}) {
		done := make(chan struct{})
		return &mpi.Error{Op: "send", Peer: 1, Tag: mpi.AnyTag, Err: fmt.Errorf("%w: %w", mpi.ErrInFlight, mpi.ErrCancelled), Done: done}, done
	}
	one, oneDone := held()
	other, otherDone := held()
	var err error = &mpi.Error{Op: "recv", Peer: lost, Tag: mpi.AnyTag, Err: mpi.ErrPeerLost}
	err = inFlightToo(inFlightToo(err, one), other)
	var at *mpi.Error
	if !errors.Is(err, mpi.ErrInFlight) || !errors.Is(err, mpi.ErrPeerLost) || !errors.As(err, &at) || at.Peer != lost || at.Done == nil {
		t.Fatalf("%v does not tell of both", err)
	}
	for _, done := range []chan struct{}{otherDone, oneDone} {
		select {
		case <-at.Done:
			t.Fatal("the buffers are said to be free, and one is not")
		default:
		}
		close(done)
	}
	select {
	case <-at.Done:
	case <-time.After(time.Minute):
		t.Fatal("the buffers are free, and nobody says so")
	}
	apart := forOthers(err)
	if errors.Is(apart, mpi.ErrInFlight) || !errors.Is(apart, mpi.ErrPeerLost) || !errors.As(apart, &at) || at.Peer != lost || at.Done != nil {
		t.Errorf("others are told %v, done %v", apart, at.Done)
	}
	if errors.Is(at, mpi.ErrInFlight) {
		t.Errorf("others find %v", at)
	}
}
