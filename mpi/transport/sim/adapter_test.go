package sim

import (
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestShortMessagesPass: an adapter serves its ranks in turn, but the
// messages of two ranks keep their order.
func TestShortMessagesPass(t *testing.T) {
	for _, c := range []timing{
		{"another rank's long message", 4, func(n *node) {
			switch n.rank {
			case 0:
				n.send(2, 10_000)
			case 1:
				n.Compute(1000)
				n.send(3, 0)
			default:
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{2: 100 + 10_000 + 1000 + 100, 3: 1000 + 100 + 1000 + 100}},
		{"but not its own", 3, func(n *node) {
			switch n.rank {
			case 0:
				n.send(2, 10_000)
				n.send(2, 0)
			case 2:
				n.until(func() bool { return n.got == 2 })
			}
		}, map[int]time.Duration{2: 100 + 10_000 + 1000 + 100 + 100}},
		{"and the long ones wait for them", 4, func(n *node) {
			switch n.rank {
			case 0:
				n.Compute(50)
				n.send(2, 10_000)
			case 1:
				n.send(3, 4000)
			default:
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{2: 100 + 4000 + 10_000 + 1000 + 100, 3: 100 + 4000 + 1000 + 100}},
	} {
		c.run(t)
	}
}

// clocked notes when its first messages came.
type clocked struct {
	*node
	came []int64
}

func (c *clocked) Message(peer int, h *transport.Header, payload []byte) {
	c.node.Message(peer, h, payload)
	c.came = append(c.came, c.clock)
}

// TestReaderCopies: what a rank pulls inside its node it copies itself, one
// pull after the other, and what arrives meanwhile it takes in between.
func TestReaderCopies(t *testing.T) {
	const size = 1_000_000
	f := New(Config{Ranks: 3, Network: plain(), SizesOnly: true})
	var keys [2]transport.Key
	shared := make([]byte, size)
	err := runOnMemory(t, f, func(rank int, p *MemoryProvider, n *node) {
		switch rank {
		case 0:
			for i := range keys {
				keys[i], _ = p.Expose(1, shared)
			}
			n.send(1, 0)
		case 1:
			c := &clocked{node: n}
			poll := func() {
				if n.Poll(c) == 0 {
					n.Sleep(n, time.Time{})
				}
			}
			for n.got == 0 {
				poll()
			}
			for i, key := range keys {
				p.Pull(0, key, shared, uint64(i+1))
			}
			for len(n.done) < 2 {
				poll()
			}
			if n.clock < 2*size {
				t.Errorf("two pulls of %d B at 1 B/ns took %v", size, time.Duration(n.clock))
			}
			if len(c.came) != 2 || c.came[1] > size/4 {
				t.Errorf("messages sent at the beginning were taken at %v ns", c.came)
			}
		case 2:
			n.send(1, 0)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
