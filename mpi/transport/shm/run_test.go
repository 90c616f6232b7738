package shm

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// A stream of small messages shares cells; answered messages do not. However sending, polling and
// taking alternate, all come once and in order, whatever their lengths and tags.
func TestRunsKeepOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	out, in := &rs[0].endpoint(1).out, &rs[1].endpoint(0).in

	const count = 50_000
	type message struct {
		tag, n int
	}
	var sent []message
	came, byTake := 0, 0
	arrived := func(tag int, payload []byte) {
		t.Helper()
		want := sent[came]
		var number [8]byte
		copy(number[:], payload)
		if tag != want.tag || len(payload) != want.n || want.n >= 8 && binary.NativeEndian.Uint64(number[:]) != uint64(came) {
			t.Fatalf("message %d of %+v came as %d B with tag %d: %v", came, want, len(payload), tag, payload)
		}
		came++
	}
	like := message{tag: 1, n: 8}
	buf := make([]byte, shortBytes)
	var send func() bool
	rs[1].onto = func(_ int, h *transport.Header, payload []byte) {
		if int(h.Bytes) != len(payload) || h.Kind != kindEager {
			t.Fatalf("message %d: header %+v of %d B", came, *h, len(payload))
		}
		arrived(int(h.Tag), payload)
		switch random.IntN(8) {
		case 0: // while it is read
			if len(sent) < count {
				send()
			}
			rs[1].Poll(rs[1])
		case 1:
			if !rs[1].pending() {
				t.Fatalf("message %d is being read, and there is nothing to do", came)
			}
		}
	}
	send = func() bool {
		if random.IntN(8) == 0 {
			like = message{tag: random.IntN(3), n: random.IntN(shortBytes + 1)}
		}
		payload := buf[:like.n]
		clear(payload)
		if like.n >= 8 {
			binary.NativeEndian.PutUint64(payload, uint64(len(sent)))
		}
		h := transport.Header{Kind: kindEager, Tag: int32(like.tag), Bytes: uint64(like.n)}
		sent = append(sent, like)
		if rs[0].Send(1, &h, payload) != transport.Sent {
			sent = sent[:len(sent)-1]
			return false
		}
		return true
	}
	byBatch := 0
	sinks := []transport.Sink{rs[1], batchRank{rs[1], func(h *transport.Header, payloads []byte, strideBytes, n int) int {
		taken := random.IntN(n + 1)
		for i := range taken {
			arrived(int(h.Tag), payloads[i*strideBytes:][:h.Bytes])
		}
		byBatch += taken
		return taken
	}}}
	for len(sent) < count || came < len(sent) {
		switch random.IntN(4) {
		case 0: // a few messages, or as many as there is room for
			for n := random.IntN(2 * cells); n > 0 && len(sent) < count && send(); n-- {
			}
		case 1:
			if len(sent) < count {
				send()
			}
		case 2:
			rs[1].mu.Lock()
			rs[1].Poll(sinks[random.IntN(2)])
			rs[1].mu.Unlock()
		default:
			for n := random.IntN(5); n > 0 && came < len(sent); n-- {
				want := transport.Header{Kind: kindEager, Tag: int32(sent[came].tag)}
				into := make([]byte, random.IntN(shortBytes+1))
				got, found := rs[1].Take(0, &want, into, 1)
				if fits := len(into) >= sent[came].n; fits != (found == transport.Taken) {
					t.Fatalf("message %d of %d B into %d B: found %d", came, sent[came].n, len(into), found)
				} else if fits {
					byTake++
					arrived(int(want.Tag), into[:got])
				}
			}
		}
	}
	if read := cellsRead(in); out.next != read || out.next > count*4/5 {
		t.Errorf("%d cells written, %d read for %d messages, more than half of which are short enough to share", out.next, read, count)
	}
	if byTake == 0 || byBatch == 0 {
		t.Errorf("%d messages were taken, %d came in batches", byTake, byBatch)
	}
}

// batchRank has messages alike at once.
type batchRank struct {
	*testRank
	take func(h *transport.Header, payloads []byte, strideBytes, count int) int
}

func (r batchRank) Batch(_ int, h *transport.Header, payloads []byte, strideBytes, count int) int {
	return r.take(h, payloads, strideBytes, count)
}

// cellsRead counts a run that has been read and may still grow.
func cellsRead(in *inbox) uint64 {
	if in.parts > 0 {
		return in.next + 1
	}
	return in.next
}

// What is answered one by one has cells of its own, which the sender does not touch again.
func TestAnsweredMessagesShareNothing(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	h := transport.Header{Kind: kindEager, Bytes: 8}
	payload := make([]byte, 8)
	for i := range 100 {
		for from := range rs {
			ep := rs[from].endpoint(1 - from)
			before := ep.out.next
			if rs[from].Send(1-from, &h, payload) != transport.Sent {
				t.Fatalf("message %d: no room", i)
			}
			if ep.out.next != before+1 || ep.out.run.w0 != 0 {
				t.Fatalf("message %d took %d cells, run %x", i, ep.out.next-before, ep.out.run.w0)
			}
			rs[1-from].into = make([]byte, 8)
			rs[1-from].mu.Lock()
			rs[1-from].Poll(rs[1-from])
			rs[1-from].mu.Unlock()
		}
	}
}

// A run only ever grows. A peer that changes it otherwise after some of it has been read is lost, and nothing is read twice.
func TestRunsOnlyGrow(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w0 uint64) uint64
	}{
		{"fewer messages", func(w0 uint64) uint64 { return w0 - oneMore }},
		{"none", func(w0 uint64) uint64 { return w0 &^ countBits }},
		{"more than there is room for", func(w0 uint64) uint64 { return w0 | countBits }},
		{"another length", func(w0 uint64) uint64 { return (w0 ^ 1<<48) + oneMore }},
		{"another kind", func(w0 uint64) uint64 { return (w0 ^ 1<<32) + oneMore }},
		{"another form", func(w0 uint64) uint64 { return w0&^(0xff<<40) | uint64(formShort)<<40 }},
		{"another number", func(w0 uint64) uint64 { return w0 + 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			rs := openWorld(t, 2, nil)
			meetAll(t, rs)
			poll := func() {
				rs[1].mu.Lock()
				defer rs[1].mu.Unlock()
				rs[1].Poll(rs[1])
			}
			came := 0
			rs[1].onto = func(int, *transport.Header, []byte) { came++ }
			h := transport.Header{Kind: kindEager, Bytes: 8}
			const count = runAfter + 3 // the last three in a run
			for range count {
				if rs[0].Send(1, &h, make([]byte, 8)) != transport.Sent {
					t.Fatal("no room")
				}
			}
			poll()
			in := &rs[1].endpoint(0).in
			if came != count || in.parts != 3 {
				t.Fatalf("%d messages came, %d of a run", came, in.parts)
			}
			w := &in.cells[in.next&cellMask][0]
			atomic.StoreUint64(w, c.change(atomic.LoadUint64(w)))
			poll()
			if broken := rs[1].endpoint(0).broken; !errors.Is(broken, errMalformed) {
				t.Errorf("reported as %v", broken)
			}
			if came != count {
				t.Errorf("%d messages came of %d", came, count)
			}
		})
	}
}
