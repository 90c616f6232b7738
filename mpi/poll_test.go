package mpi

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestSpinLooksLast: what another goroutine did when the leader stepped aside is seen before the
// leader sleeps, also if its time was up by then.
func TestSpinLooksLast(t *testing.T) {
	e := newPlay(0, []string{"1"}).e
	e.lock()
	defer e.unlock()
	o := e.ops.get()
	o.phase = phasePosted
	e.spinTime = time.Hour
	go func() {
		e.lock()
		defer e.unlock()
		e.finish(o, nil)
		e.spinTime = 0
	}()
	for e.contended.Load() == 0 {
		runtime.Gosched()
	}
	if !e.spin(o) {
		t.Error("an operation that finished meanwhile was not noticed")
	}
}

// TestCloseAmidGlance: the world closes while a receive that has just begun is inside its
// provider, which then has the receive's memory.
func TestCloseAmidGlance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(0, []string{"2", "pull"})
		closed := make(chan error)
		polls := 0
		p.s.poll = func(s transport.Sink) int {
			switch polls++; polls {
			case 1:
				s.Message(1, &transport.Header{Kind: kindRTS, Token: 5, Bytes: 500}, make([]byte, len(transport.Key{})))
			case 2:
				s.Outside(func() {
					go func() { closed <- p.c.world.Close(context.Background()) }()
					synctest.Wait()
				})
			default:
				return 0
			}
			return 1
		}
		if _, err := Recv(context.Background(), p.c, make([]byte, 500), 1, 0); !errors.Is(err, ErrClosed) {
			t.Errorf("the receive ended with %v", err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}
