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
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.ops.get()
	o.phase = phasePosted
	e.spinTime = time.Hour
	go func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.finish(o, nil)
		e.spinTime = 0
	}()
	for !e.mu.Wanted() {
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

// In a crowd a caller gives the core away after one look, but for a rank of another core where two share one.
func TestLooks(t *testing.T) {
	e := newPlay(0, []string{"1"}).e
	e.peers = make([]*peer, 3)
	e.peers[1] = &peer{rank: 1, elsewhere: true}
	e.peers[2] = &peer{rank: 2}
	recv := func(source int32) condition {
		return &op{kind: opRecv, peer: -1, env: envelope{source: source}}
	}
	for _, c := range []struct {
		name    string
		couples bool
		cond    condition
		want    int
	}{
		{"receive from another core", true, recv(1), looksElsewhere},
		{"receive from the same core", true, recv(2), 1},
		{"receive from one that never sent", true, recv(0), 1},
		{"receive from anybody", true, recv(AnySource), 1},
		{"receive that has begun", true, &op{kind: opRecv, peer: 1, env: envelope{source: AnySource}}, looksElsewhere},
		{"send to another core", true, &op{kind: opSend, peer: 1}, looksElsewhere},
		{"send to the same core", true, &op{kind: opSend, peer: 2}, 1},
		{"more than two share a core", false, recv(1), 1},
		{"no operation", true, &anyOf{}, 1},
	} {
		if e.couples = c.couples; e.spell(c.cond).looks != c.want {
			t.Errorf("%s: %d looks, want %d", c.name, e.spell(c.cond).looks, c.want)
		}
	}
	e.crowded, e.couples = true, true
	s := e.spell(recv(1))
	for i := 1; i <= looksElsewhere; i++ {
		if out := e.spunOut(&s); out != (i == looksElsewhere) {
			t.Errorf("after %d looks of %d: %v", i, looksElsewhere, out)
		}
	}
}
