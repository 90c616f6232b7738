package mpi

import (
	"testing"
	"time"
)

// A rank that has not connected yet is waited for as long as one that is silent later, and as long as usual.
func TestFirstContact(t *testing.T) {
	const usual = 10 * time.Second
	for _, c := range []struct{ peerTimeout, want time.Duration }{
		{0, usual},
		{time.Second, usual},
		{time.Minute, time.Minute},
		{-1, silence},
	} {
		if got := (&Config{PeerTimeout: c.peerTimeout}).firstContact(usual); got != c.want {
			t.Errorf("PeerTimeout %v: %v, want %v", c.peerTimeout, got, c.want)
		}
	}
}
