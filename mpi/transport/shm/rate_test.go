package shm

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// BenchmarkSmallMessages is what a small message costs its sender and its
// receiver together, on one core: the instructions, without the travelling.
func BenchmarkSmallMessages(b *testing.B) {
	rs := openWorld(b, 2, nil)
	meetAll(b, rs)
	taken := 0
	rs[1].onto = func(int, *transport.Header, []byte) { taken++ }
	var payload [8]byte
	h := transport.Header{Kind: kindEager, Bytes: 8}
	sent := 0
	for b.Loop() {
		if rs[0].Send(1, &h, payload[:]) != transport.Sent {
			b.Fatal("full")
		}
		if sent++; sent%drainCells == 0 {
			rs[1].mu.Lock()
			rs[1].Poll(rs[1])
			rs[1].mu.Unlock()
		}
	}
	rs[1].Poll(rs[1])
	if taken != sent {
		b.Fatalf("%d of %d messages taken", taken, sent)
	}
}
