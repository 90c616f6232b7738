package mpi

import (
	"errors"
	"math"
	"strings"
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
		{math.MaxInt64, silence},
	} {
		if got := (&Config{PeerTimeout: c.peerTimeout}).firstContact(usual); got != c.want {
			t.Errorf("PeerTimeout %v: %v, want %v", c.peerTimeout, got, c.want)
		}
	}
}

// A peer timeout that leaves no time between two signs of life is refused, by its value.
func TestPeerTimeoutTooShort(t *testing.T) {
	for _, timeout := range []time.Duration{1, 4, MinPeerTimeout - 1} {
		w, err := Init(t.Context(), &Config{PeerTimeout: timeout, Lookup: lookupIn(nil)})
		if w != nil {
			w.Close(t.Context())
		}
		if !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), timeout.String()) || !strings.Contains(err.Error(), "such as 5s") {
			t.Errorf("%v: %v", timeout, err)
		}
	}
	for _, timeout := range []time.Duration{-1, 0, MinPeerTimeout, math.MaxInt64} {
		cfg := Config{PeerTimeout: timeout}
		if err := cfg.check(); err != nil || cfg.peerTimeout() > silence {
			t.Errorf("%v: %v, is %v", timeout, err, cfg.peerTimeout())
		}
	}
}
