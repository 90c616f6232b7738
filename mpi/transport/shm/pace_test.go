package shm

import (
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

func TestPace(t *testing.T) {
	const kernel = 0.1 // ns a byte
	message := func(p *pace, chunks ...time.Duration) {
		for _, took := range chunks {
			p.note(took, 1000)
		}
		p.judge(kernel)
	}
	pulled := func(p *pace) (n int) {
		for p.pulled() {
			n++
		}
		return n
	}
	const near, far = 100, 200 // kernel, 2*kernel for 1000 bytes
	for _, c := range []struct {
		name     string
		messages [][]time.Duration
		want     int
	}{
		{"none", nil, 0},
		{"near", [][]time.Duration{{near}, {near}, {near}, {near}}, 0},
		{"far", [][]time.Duration{{far}, {far}, {far}}, farMessages},
		{"not yet", [][]time.Duration{{far}, {far}}, 0},
		{"interrupts", [][]time.Duration{{far}, {far}, {near}, {far}, {far}}, 0},
		{"the quickest chunk counts", [][]time.Duration{{far, near}, {near, far}, {far, near, far}}, 0},
		{"nothing timed", [][]time.Duration{{}, {}, {}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pace
			for _, m := range c.messages {
				message(&p, m...)
			}
			if got := pulled(&p); got != c.want {
				t.Fatalf("%d messages pulled, want %d", got, c.want)
			}
		})
	}
	var p pace
	message(&p, far)
	message(&p, far)
	message(&p, far)
	pulled(&p)
	for range slowMessages {
		message(&p, far)
	}
	if n := pulled(&p); n != 0 {
		t.Errorf("after %d slow messages %d are pulled: the ring may have left the caches", slowMessages, n)
	}
	if message(&p, far); pulled(&p) != farMessages {
		t.Error("still far, and the ring is tried again and again")
	}
	if message(&p, near); pulled(&p) != 0 {
		t.Error("near now, and still pulled")
	}
}

// TestFarPeersPull: where the ring turns out slow, messages are exposed, until it is tried again.
func TestFarPeersPull(t *testing.T) {
	rs := openWorld(t, 2, nil)
	rs[0].habit = habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, kernel: 1e-9} // every copy is slower
	meetAll(t, rs)
	buf := pattern(4*eagerBytes, 1)
	if _, ok := rs[0].Expose(1, buf); ok {
		t.Fatal("exposed before anything is known of the ring")
	}
	for range slowMessages + 1 {
		ended := rs[0].sent
		rs[1].into = make([]byte, len(buf))
		h := transport.Header{Kind: transport.Data, Bytes: uint64(len(buf))}
		if out := rs[0].SendFrom(1, &h, buf, opSendFrom); out != transport.Sent {
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
	}
	mayCopy(t)
	for i := range farMessages {
		key, ok := rs[0].Expose(1, buf)
		if !ok {
			t.Fatalf("message %d not exposed", i)
		}
		rs[0].Withdraw(1, key)
	}
	if _, ok := rs[0].Expose(1, buf); ok {
		t.Fatal("the ring is not tried again")
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

// TestCrowdPulls: where ranks share processors, messages are exposed at once, and from a shorter length on.
func TestCrowdPulls(t *testing.T) {
	rs := openWorld(t, 2, nil)
	rs[0].habit = habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, kernel: 1}
	meetAll(t, rs)
	if c := rs[0].Caps(); c.PullBytes != streamFrom {
		t.Fatalf("pulled from %d B on, want %d", c.PullBytes, streamFrom)
	}
	rs[0].Crowd()
	if c := rs[0].Caps(); c.PullBytes != pullFrom || c.RendezvousBytes != pullFrom {
		t.Errorf("pulled from %d and announced from %d B on, want %d", c.PullBytes, c.RendezvousBytes, pullFrom)
	}
	mayCopy(t)
	if _, ok := rs[0].Expose(1, pattern(pullFrom, 1)); !ok {
		t.Error("not exposed")
	}
}
