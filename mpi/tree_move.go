package mpi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// probes is how many other ranks are asked for a sign of life before a rank
// that cannot reach its new parent decides which of the two is cut off.
const probes = 4

// move looks for a new parent on a goroutine of its own. Callers hold the lock.
func (t *tree) move() {
	if t.moving || t.closing || t.cutOff || t.roster == nil {
		return
	}
	t.moving, t.parent = true, -1
	t.work.Go(func() {
		for t.moveOnce() {
		}
	})
}

// lowest is the living rank of the lowest position. Callers hold the lock.
func (t *tree) lowest() int {
	for _, rank := range t.byPosition {
		if !t.givenUp(rank) && !t.away[rank] {
			return rank
		}
	}
	return t.self.Rank
}

// grace is how long the host of a new parent may be out of reach.
func (t *tree) grace() time.Duration {
	if t.timeout == 0 {
		return defaultPeerTimeout / 2
	}
	return t.timeout / 2
}

// moveOnce tries the lowest living position; it reports whether to go on.
func (t *tree) moveOnce() (again bool) {
	t.mu.Lock()
	to := t.lowest()
	if to == t.self.Rank || t.edges[to] != nil || t.closing || t.cutOff || t.isParted() {
		t.moving = false
		if to != t.self.Rank && t.edges[to] != nil {
			t.parent = to
		}
		t.mu.Unlock()
		return false
	}
	address := t.roster.Seats[to].Tree
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t.target, t.forsake = to, cancel
	t.mu.Unlock()
	stop := t.cancelOnEnd(cancel)
	defer stop()
	conn, err := t.call(ctx, to, address)
	alive := true
	if err != nil && !errors.Is(err, wire.ErrRefused) && !errors.Is(err, syscall.ECONNREFUSED) {
		alive = t.probe(to)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.forsake = nil
	switch {
	case t.closing || t.cutOff:
		if conn != nil {
			conn.Close()
		}
	case t.givenUp(to): // another has found out
		if conn != nil {
			conn.Close()
		}
		return true
	case err == nil:
		t.parent = to
		t.addEdge(conn, to)
		t.moving = false
		return false
	case errors.Is(err, wire.ErrRefused):
		if !t.left[to] {
			t.isolate(fmt.Sprintf("rank %d no longer knows this rank: it was silent for too long", to))
		}
		t.away[to] = true
		return true
	case !alive:
		t.isolate(fmt.Sprintf("no other rank can be reached from here: %v", err))
	case t.left[to]:
		t.away[to] = true
		t.learn(fact{Rank: to, Gone: true, Why: goneEarly}, nil)
		return true
	default:
		why := fmt.Sprintf("rank %d cannot reach it: %v", t.self.Rank, err)
		if errors.Is(err, syscall.ECONNREFUSED) {
			why = "its process ended without a goodbye"
		}
		t.learn(fact{Rank: to, Why: why}, nil)
		return true
	}
	t.moving = false
	return false
}

// call tries to reach a new parent. The parent's host has the grace to answer. The parent itself has the peer timeout, like
// any neighbour, since it may stand still for a while. Without a peer timeout it is waited for until ctx ends.
func (t *tree) call(ctx context.Context, rank int, address string) (net.Conn, error) {
	var deadline time.Time // for the rank; zero: none
	if t.timeout > 0 {
		deadline = time.Now().Add(t.timeout)
	}
	reachable := time.Now().Add(t.grace()) // until then the host must be reached
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		dialer := net.Dialer{Deadline: reachable}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			conn, err = t.greet(ctx, conn, rank, deadline)
			reachable = time.Now().Add(t.grace())
		}
		now := time.Now()
		if err == nil || ctx.Err() != nil || errors.Is(err, wire.ErrRefused) || errors.Is(err, syscall.ECONNREFUSED) ||
			!now.Before(reachable) || !deadline.IsZero() && !now.Before(deadline) {
			return conn, err
		}
		waited(ctx, pause)
	}
}

// probe tells whether a peer or the network is gone: it reports whether any of a few living ranks
// of other hosts can be reached; the rank given by not is left out. If there are none to ask it reports true.
func (t *tree) probe(not int) bool {
	t.mu.Lock()
	var addresses []string
	for _, rank := range t.byPosition {
		seat := t.roster.Seats[rank]
		if !t.givenUp(rank) && !t.left[rank] && rank != not && rank != t.self.Rank && seat.Host != t.host && len(addresses) < probes {
			addresses = append(addresses, seat.Tree)
		}
	}
	t.mu.Unlock()
	if len(addresses) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.grace()/2)
	defer cancel()
	stop := t.cancelOnEnd(cancel)
	defer stop()
	found := make(chan bool, len(addresses))
	for _, address := range addresses {
		go func() {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, "tcp", address)
			if err == nil {
				conn.Close()
			}
			// A host that refuses is reached, too.
			found <- err == nil || errors.Is(err, syscall.ECONNREFUSED)
		}()
	}
	for range addresses {
		if <-found {
			return true
		}
	}
	return false
}

// cancelOnEnd ends a wait when the tree is closed.
func (t *tree) cancelOnEnd(cancel func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-t.ended:
			cancel()
		case <-done:
		}
	}()
	return func() { close(done) }
}
