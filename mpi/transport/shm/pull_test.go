package shm

import (
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestFarPeersPull: where the ring turns out slow, very long messages are exposed, until it is tried again.
func TestFarPeersPull(t *testing.T) {
	rs := openWorld(t, 2, nil)
	rs[0].habit = habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, slow: 1e-9, paced: true} // every copy is slower
	meetAll(t, rs)
	buf := pattern(farPullBytes, 1)
	expose := func(n int) bool {
		key, ok := rs[0].Expose(1, buf[:n])
		if ok {
			rs[0].Withdraw(1, key)
		}
		return ok
	}
	if expose(farPullBytes) {
		t.Fatal("exposed before anything is known of the ring")
	}
	ended := rs[0].sent
	rs[1].into = make([]byte, 4*eagerBytes) // in pieces, the first of which show it
	h := transport.Header{Kind: transport.Data, Bytes: uint64(len(rs[1].into))}
	if out := rs[0].SendFrom(1, &h, buf[:len(rs[1].into)], opSendFrom); out != transport.Sent {
		t.Fatalf("SendFrom: %v", out)
	}
	for deadline := time.Now().Add(patience); rs[0].sent == ended; {
		if time.Now().After(deadline) {
			t.Fatal("a stream does not end")
		}
		for _, r := range rs {
			r.mu.Lock()
			r.Poll(r)
			r.mu.Unlock()
		}
	}
	mayCopy(t)
	if expose(farPullBytes - 1) {
		t.Error("exposed, though it takes less time through the ring")
	}
	exposed := 0
	for expose(farPullBytes) {
		if exposed++; exposed > 1<<16 {
			t.Fatal("the ring is not tried again")
		}
	}
	if exposed == 0 {
		t.Error("not exposed")
	}
}

// TestExchangePullsAlone: a peer that is sent something is not asked to help, for as long as that takes.
func TestExchangePullsAlone(t *testing.T) {
	rs := openWorld(t, 2, func(c *Config) { c.Copies = 1 })
	meetAll(t, rs)
	mayCopy(t)
	mine, theirs := pattern(helpBytes, 1), pattern(helpBytes, 2)
	shared := func() bool {
		key, ok := rs[1].Expose(0, theirs)
		if !ok {
			t.Fatal("not exposed:", rs[1].Path(0))
		}
		rs[0].Pull(1, key, make([]byte, len(theirs)), 7)
		return rs[0].pulls[len(rs[0].pulls)-1].shared
	}
	if !shared() {
		t.Error("a peer that has nothing else to do is not asked to help")
	}
	key, _ := rs[0].Expose(1, mine)
	if shared() {
		t.Error("a peer that has as much to pull is asked to help")
	}
	if !rs[0].Withdraw(1, key) {
		t.Fatal("what nobody pulls cannot be withdrawn")
	}
	if !shared() {
		t.Error("a peer that was sent something before is not asked to help")
	}
}

// TestCrowdPulls: where ranks share processors, what does not fit into the ring at once is exposed.
func TestCrowdPulls(t *testing.T) {
	rs := openWorld(t, 2, nil)
	rs[0].habit = habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, slow: 1, paced: true}
	meetAll(t, rs)
	mayCopy(t)
	exposes := func(n int, want bool) {
		t.Helper()
		key, ok := rs[0].Expose(1, pattern(n, 1))
		if ok != want {
			t.Errorf("%d bytes exposed: %v", n, ok)
		}
		if ok && !rs[0].Withdraw(1, key) {
			t.Fatal("what nobody pulls cannot be withdrawn")
		}
	}
	exposes(streamFrom, false)
	exposes(1<<20, false)
	rs[0].Crowd()
	if c := rs[0].Caps(); c.PullBytes != mappedFrom || c.RendezvousBytes != streamFrom {
		t.Errorf("pulled from %d and announced from %d B on, want %d and %d", c.PullBytes, c.RendezvousBytes, mappedFrom, streamFrom)
	}
	exposes(streamFrom-1, false)
	exposes(streamFrom, true)
}
