package shm

import (
	"bytes"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestTake: the next message is taken if it is the one that is wanted and fits,
// and everything else is left to Poll as it was.
func TestTake(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	want := transport.Header{Kind: kindEager, Context: 4, Tag: -7}
	for _, c := range []struct {
		name    string
		h       transport.Header
		bytes   int
		room    int
		found   transport.Find
		pending bool
	}{
		{name: "nothing", bytes: -1, room: 64, found: transport.Nothing},
		{name: "empty", h: want, bytes: 0, room: 0, found: transport.Taken},
		{name: "in a cell", h: want, bytes: 48, room: 64, found: transport.Taken},
		{name: "in the byte ring", h: want, bytes: 5000, room: 5000, found: transport.Taken},
		{name: "too long for the buffer", h: want, bytes: 48, room: 47, found: transport.Other, pending: true},
		{name: "too long, in the byte ring", h: want, bytes: 5000, room: 4999, found: transport.Other, pending: true},
		{name: "another tag", h: transport.Header{Kind: kindEager, Context: 4, Tag: 7}, bytes: 8, room: 64, found: transport.Other, pending: true},
		{name: "another context", h: transport.Header{Kind: kindEager, Context: 5, Tag: -7}, bytes: 8, room: 64, found: transport.Other, pending: true},
		{name: "another kind", h: transport.Header{Kind: kindRTS, Context: 4, Tag: -7}, bytes: 8, room: 64, found: transport.Other, pending: true},
		{name: "with a token", h: transport.Header{Kind: kindEager, Context: 4, Tag: -7, Token: 1}, bytes: 8, room: 64, found: transport.Other, pending: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			payload := pattern(max(c.bytes, 0), 3)
			if c.bytes >= 0 {
				c.h.Bytes = uint64(c.bytes)
				if out := rs[0].Send(1, &c.h, payload); out != transport.Sent {
					t.Fatalf("Send: %v", out)
				}
			}
			buf := make([]byte, c.room)
			n, found := rs[1].Take(0, &want, buf, 3)
			if found != c.found {
				t.Fatalf("found %d, want %d", found, c.found)
			}
			if found == transport.Taken && !bytes.Equal(buf[:n], payload) {
				t.Fatalf("%d bytes taken, %d sent, or others", n, len(payload))
			}
			polled := 0
			rs[1].onto = func(_ int, h *transport.Header, p []byte) {
				polled++
				if h.Kind != c.h.Kind || h.Context != c.h.Context || h.Tag != c.h.Tag || h.Token != c.h.Token || !bytes.Equal(p, payload) {
					t.Errorf("Poll handed over %+v with %d bytes", *h, len(p))
				}
			}
			rs[1].Poll(rs[1])
			if left := polled > 0; left != c.pending {
				t.Fatalf("left to Poll: %v, want %v", left, c.pending)
			}
		})
	}
}

// TestTakeGivesCredit: a sender never waits for a receiver that takes.
func TestTakeGivesCredit(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	h := transport.Header{Kind: kindEager, Bytes: 3000}
	payload, buf := pattern(3000, 1), make([]byte, 3000)
	for i := range 10 * cells {
		if out := rs[0].Send(1, &h, payload); out != transport.Sent {
			t.Fatalf("message %d: %v", i, out)
		}
		if n, found := rs[1].Take(0, &h, buf, 1); found != transport.Taken || !bytes.Equal(buf[:n], payload) {
			t.Fatalf("message %d: found %d, %d bytes", i, found, n)
		}
	}
}
