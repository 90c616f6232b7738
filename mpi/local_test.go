package mpi

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// TestBufferBackAmidCopy: a receive ends with its context while another goroutine of its rank is placing the message. From
// then on the buffer is the caller's (the race detector sees who writes).
func TestBufferBackAmidCopy(t *testing.T) {
	const n = 4 << 20
	worlds, err := Local(2, LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	defer func() {
		for _, w := range worlds {
			closing, stop := context.WithTimeout(context.Background(), time.Second)
			_ = w.Close(closing) // a receive was given up: only that it ends matters
			stop()
		}
	}()
	send, recv := make([]byte, n), make([]byte, n)
	for round := range 20 {
		leading, stop := context.WithCancel(ctx)
		led := make(chan struct{})
		go func() { // polls, and places what comes for the other
			defer close(led)
			_, _ = Recv(leading, worlds[0].Comm(), make([]byte, 1), 1, 1)
		}()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_ = Send(leading, worlds[1].Comm(), send, 0, 2)
		}()
		r := Irecv(worlds[0].Comm(), recv, 1, 2)
		ended, end := context.WithTimeout(ctx, time.Duration(round)*200*time.Microsecond)
		_, _ = r.Wait(ended)
		for i := range recv {
			recv[i] = byte(round)
		}
		end()
		stop()
		<-led
		<-sent
		for i, x := range recv {
			if x != byte(round) {
				t.Fatalf("round %d: byte %d was written after the buffer had been given back", round, i)
			}
		}
	}
}

// TestWaitAnyOfTwoWorlds: no caller can make progress in both, so it is refused. The requests go on.
func TestWaitAnyOfTwoWorlds(t *testing.T) {
	worlds, err := Local(2, LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var rs []Request
	for r, w := range worlds {
		rs = append(rs, Irecv(w.Comm(), make([]byte, 1), 1-r, 0))
	}
	if i, _, err := WaitAny(ctx, rs); i != -1 || !errors.Is(err, ErrRequest) {
		t.Errorf("index %d, %v; want -1, %v", i, err, ErrRequest)
	}
	for r, w := range worlds {
		if err := Send(ctx, w.Comm(), []byte{1}, 1-r, 0); err != nil {
			t.Error(err)
		}
	}
	if err := WaitAll(ctx, rs); err != nil {
		t.Error(err)
	}
	closed := make(chan error)
	for _, w := range worlds {
		go func() { closed <- w.Close(ctx) }()
	}
	for range worlds {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
}

// TestGoodbyeOfTheLostCountsOnce: a rank that others have given up and that says goodbye itself is one rank: who is there still is
// waited for.
func TestGoodbyeOfTheLostCountsOnce(t *testing.T) {
	c := &circle{living: 3, gone: make([]bool, 3), left: make(chan struct{})}
	fabric := sim.New(sim.Config{Ranks: 3})
	seat := func(rank int) localSeat { return localSeat{c, fabric, rank} }
	over, end := context.WithCancel(t.Context())
	end()
	if err := seat(1).Bye(over); err != context.Canceled {
		t.Error(err)
	}
	seat(0).AnnounceLost(1, "silent")
	if err := seat(0).Bye(over); err != context.Canceled {
		t.Errorf("%v, although rank 2 has not left", err)
	}
	if err := seat(2).Bye(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestKilledAmidGoodbye: a rank is killed while the others wait for its goodbye. Nobody waits for it any more.
func TestKilledAmidGoodbye(t *testing.T) {
	f := sim.New(sim.Config{Ranks: 3})
	worlds, err := Local(3, LocalOptions{Fabric: f})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	closed := make(chan error)
	for _, w := range worlds[:2] {
		go func() { closed <- w.Close(ctx) }()
	}
	for seat := worlds[0].membership.(localSeat); seat.stays(0) || seat.stays(1); {
		osyield.Yield()
	}
	f.Kill(2)
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	if err := worlds[2].Close(ctx); err != nil {
		t.Logf("the killed rank: %v", err)
	}
}
