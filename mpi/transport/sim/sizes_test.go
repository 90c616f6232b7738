package sim

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestSizesOnly: payloads of up to CarriedBytes travel also where they are lent or pulled, and although their sender uses its
// memory again; of longer ones only the length does.
func TestSizesOnly(t *testing.T) {
	for _, size := range []int{CarriedBytes, CarriedBytes + 1} {
		want := make([]byte, size)
		if size <= CarriedBytes {
			want = bytes.Repeat([]byte{7}, size)
		}
		for name, c := range map[string]struct {
			send func(sender *MemoryProvider, buf []byte) transport.Key
			wait func(n *node, receiver *MemoryProvider, key *transport.Key) []byte
		}{
			"lent": {lend(2), func(n *node, _ *MemoryProvider, _ *transport.Key) []byte {
				n.until(func() bool { return n.got == 1 })
				return n.last
			}},
			"lent data": {lend(transport.Data), func(n *node, _ *MemoryProvider, _ *transport.Key) []byte {
				n.place = make([]byte, size)
				n.until(func() bool { return n.got == 1 })
				return n.place
			}},
			"pulled": {func(sender *MemoryProvider, buf []byte) transport.Key {
				key, _ := sender.Expose(1, buf)
				return key
			}, func(n *node, receiver *MemoryProvider, key *transport.Key) []byte {
				n.until(func() bool { return n.got == 1 })
				dst := make([]byte, size)
				receiver.Pull(0, *key, dst, 1)
				n.until(func() bool { return len(n.done) == 1 })
				return dst
			}},
		} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				got := exchange(t, bytes.Repeat([]byte{7}, size), c.send, c.wait)
				if name == "lent" && size > CarriedBytes { // what its receiver is shown is nobody's
					got = make([]byte, len(got))
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%d B: got %v, want %v", size, got, want)
				}
			})
		}
	}
}

// lend sends a message of a kind from memory that stays the sender's.
func lend(kind transport.Kind) func(*MemoryProvider, []byte) transport.Key {
	return func(sender *MemoryProvider, buf []byte) transport.Key {
		sender.SendFrom(1, &transport.Header{Kind: kind}, buf, 1)
		return transport.Key{}
	}
}

// exchange has rank 0 send buf and clear it as soon as it may, and rank 1 receive it.
func exchange(t *testing.T, buf []byte, send func(*MemoryProvider, []byte) transport.Key,
	wait func(*node, *MemoryProvider, *transport.Key) []byte) (got []byte) {
	t.Helper()
	f := New(Config{Ranks: 2, Network: plain(), SizesOnly: true})
	var key transport.Key
	err := runOnMemory(t, f, func(rank int, p *MemoryProvider, n *node) {
		if rank == 0 {
			if key = send(p, buf); key != (transport.Key{}) {
				n.send(1, 0) // to be pulled now
			}
			n.until(func() bool { return len(n.done) == 1 || key != (transport.Key{}) })
			if len(n.done) == 1 {
				clear(buf)
			}
			n.until(func() bool { return n.got == 1 }) // the answer
			return
		}
		got = wait(n, p, &key)
		n.send(0, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}
