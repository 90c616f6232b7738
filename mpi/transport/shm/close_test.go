package shm

import (
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestCloseAwaitsWriters: Close does not return while a peer writes to this rank's memory, also one that has been detached.
func TestCloseAwaitsWriters(t *testing.T) {
	for name, detached := range map[string]bool{"up": false, "detached": true} {
		t.Run(name, func(t *testing.T) {
			rs := openWorld(t, 2, func(cfg *Config) { cfg.Copies = 1 })
			meetAll(t, rs)
			mayCopy(t)
			key, ok := rs[0].Expose(1, pattern(4*unitBytes, 1))
			if !ok {
				t.Fatal("not exposed:", rs[0].Path(1))
			}
			const op = 7
			if o := rs[1].Pull(0, key, make([]byte, 4*unitBytes), op); o != transport.Sent {
				t.Fatal(o)
			}
			// Rank 0 has claimed a unit from the back, and takes its time to write it.
			_, _, _, number := keyParts(key)
			slot := rs[0].endpoint(1).exposures.list[number].slot
			c := claim(slot.state.Load())
			next, from, to := c.takeBack(1)
			if !slot.state.CompareAndSwap(uint64(c), uint64(next)) {
				t.Fatal("somebody else claims")
			}
			if detached {
				rs[1].mu.Lock()
				rs[1].Detach(0)
				rs[1].Poll(rs[1])
				rs[1].mu.Unlock()
			}
			if err, over := rs[1].pulled[op]; over {
				t.Fatal("the pull is over:", err)
			}
			closed := make(chan struct{})
			go func() {
				rs[1].Close()
				close(closed)
			}()
			select {
			case <-closed:
				t.Error("closed while the peer writes")
			case <-time.After(closeTimeout / 10):
			}
			slot.helped.Add(uint64(to - from))
			<-closed
		})
	}
}

// TestFlushWithoutPeer: what waits to leave for a peer that has hung up does not hold up the end.
func TestFlushWithoutPeer(t *testing.T) {
	rs := openWorld(t, 2, func(cfg *Config) { cfg.Copies = 2 })
	meetAll(t, rs)
	const nBytes = 8 << 20
	rs[0].mu.Lock()
	defer rs[0].mu.Unlock()
	if o := rs[0].SendFrom(1, &transport.Header{Kind: transport.Data, Bytes: nBytes}, make([]byte, nBytes), opSendFrom); o != transport.Sent {
		t.Fatal(o)
	}
	rs[1].Close()
	ep := rs[0].endpoint(1)
	deadline := time.Now().Add(patience)
	for !ep.hungup && time.Now().Before(deadline) {
		rs[0].hear()
	}
	if !ep.hungup || len(ep.out.streams) == 0 {
		t.Fatalf("hung up: %v; %d payloads wait", ep.hungup, len(ep.out.streams))
	}
	deadline = time.Now().Add(20 * time.Second)
	rs[0].flush(deadline)
	if !time.Now().Before(deadline) {
		t.Error("flush has waited as long as it may")
	}
}
