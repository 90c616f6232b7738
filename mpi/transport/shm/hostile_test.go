package shm

import (
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// What a peer that is broken, or means harm, writes into the memory that it shares with this rank.

// TestRequestThatChanges: what is checked of a peer's request for help is what is used, although the peer can write there all the time.
func TestRequestThatChanges(t *testing.T) {
	rs := openWorld(t, 2, func(cfg *Config) { cfg.Copies = 1 })
	meetAll(t, rs)
	mayCopy(t)
	buf := make([]byte, 8*unitBytes)[:4*unitBytes]
	key, ok := rs[0].Expose(1, buf)
	if !ok {
		t.Fatal("not exposed:", rs[0].Path(1))
	}
	_, n, gen, number := keyParts(key)
	ep := rs[0].endpoint(1)
	e := &ep.exposures.list[number]
	c := ep.nextCell()
	c[1] = uint64(number) | uint64(gen)<<32
	c[2], c[4], c[5] = uint64(unitBytes), 0, 0
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for !stop.Load() {
			for _, lengthBytes := range []uint64{n, 1 << 40} {
				atomic.StoreUint64((*uint64)(unsafe.Pointer(&c[3])), lengthBytes)
			}
		}
	}()
	defer func() {
		stop.Store(true)
		<-stopped
	}()
	taken := 0
	for try := range 500_000 {
		if ep.help(c) != nil {
			if try%1000 == 0 {
				runtime.Gosched() // one processor may be all there is
			}
			continue
		}
		taken++
		if e.n > len(e.buf) {
			t.Fatalf("try %d: a request for %d bytes of %d was taken", try, e.n, len(e.buf))
		}
		e.helping = false
		ep.p.helps = ep.p.helps[:0]
	}
	t.Logf("%d requests taken", taken)
}

// asked has a sink count the payloads that it was asked to place.
type asked struct {
	*testRank
	n int
}

func (a *asked) Place(int, *transport.Header, int, int) []byte {
	a.n++
	return nil
}

// TestPayloadOfAnotherKind: only Data may come in pieces. A peer that begins another kind so is lost, and the sink hears nothing of it.
func TestPayloadOfAnotherKind(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	ep := rs[0].endpoint(1)
	c := ep.nextCell()
	c.putHeader(&transport.Header{Kind: kindEager, Bytes: 1 << 62, Token: 99})
	c[5] = 8
	ep.post(c, word0(kindEager, formOpen, 0))
	off, ok := ep.piece(8)
	if !ok {
		t.Fatal("no room in a new ring")
	}
	c = ep.nextCell()
	c[1] = span(off, 8)
	ep.post(c, word0(transport.Data, formChunk, 0))
	sink := &asked{testRank: rs[1]}
	rs[1].mu.Lock()
	defer rs[1].mu.Unlock()
	err := rs[1].until(func() bool {
		rs[1].Poll(sink)
		return rs[1].lost[0] != nil || sink.n > 0
	})
	if err != nil || sink.n > 0 || rs[1].lost[0] == nil {
		t.Errorf("asked to place %d payloads; lost %v; %v", sink.n, rs[1].lost, err)
	}
}
