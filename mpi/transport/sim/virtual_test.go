package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// node drives a provider as a message layer would: it polls, and sleeps when
// there is nothing.
type node struct {
	*Provider
	sync.Mutex
	got   int
	bytes int
	last  []byte
	lost  map[int]error
	done  map[uint64]error
	order []int
	place []byte
}

// runOnMemory runs what each rank does with its provider of memory, with the lock of its node held.
func runOnMemory(t *testing.T, f *Fabric, do func(rank int, p *MemoryProvider, n *node)) error {
	t.Helper()
	return f.Run(t.Context(), func(rank int) {
		p, err := f.OpenMemory(rank)
		if err != nil {
			t.Error(err)
			return
		}
		n := &node{Provider: p.Provider}
		n.Lock()
		defer n.Unlock()
		do(rank, p, n)
	})
}

func (n *node) Message(peer int, h *transport.Header, payload []byte) {
	n.got++
	n.bytes += len(payload)
	n.last = append(n.last[:0], payload[:min(len(payload), 300)]...)
	n.order = append(n.order, peer)
}

func (n *node) Place(_ int, _ *transport.Header, offset, size int) []byte {
	return n.place[offset:size]
}

func (n *node) Placed(peer int, h *transport.Header) {
	n.got++
	n.order = append(n.order, peer)
}

func (n *node) Complete(op uint64, err error) {
	if n.done == nil {
		n.done = map[uint64]error{}
	}
	n.done[op] = err
}

func (n *node) Lost(peer int, err error) {
	if n.lost == nil {
		n.lost = map[int]error{}
	}
	n.lost[peer] = err
}

func (n *node) Outside(work func()) { work() }

// until polls and sleeps until cond holds or everything is lost.
func (n *node) until(cond func() bool) {
	for !cond() && len(n.lost) == 0 {
		if n.Poll(n) == 0 && !cond() {
			n.Sleep(n, time.Time{})
		}
	}
}

func (n *node) send(peer, size int) { n.Send(peer, &transport.Header{Kind: 2}, make([]byte, size)) }

// virtual runs main on each rank of a fabric and returns the fabric.
func virtual(t testing.TB, cfg Config, main func(n *node)) (*Fabric, error) {
	t.Helper()
	f := New(cfg)
	nodes := make([]*node, cfg.Ranks)
	for i := range nodes {
		p, err := f.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = &node{Provider: p}
	}
	return f, f.Run(context.Background(), func(rank int) {
		n := nodes[rank]
		n.Lock()
		defer n.Unlock()
		main(n)
	})
}

// plain is a network with round numbers and two ranks a node.
func plain() *Network {
	return &Network{
		Name: "plain", RanksPerNode: 2,
		Node:       Link{Latency: 10, Overhead: 1, Bandwidth: 1e9},
		Wire:       Link{Latency: 1000, Overhead: 100, Gap: 50, Bandwidth: 1e9},
		EagerBytes: 1 << 20, RendezvousBytes: 1 << 20,
	}
}

// timing is a program over plain() and when, by hand, its ranks end.
type timing struct {
	name  string
	ranks int
	main  func(n *node)
	want  map[int]time.Duration
}

func (c timing) run(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		f, err := virtual(t, Config{Ranks: c.ranks, Network: plain()}, c.main)
		if err != nil {
			t.Fatal(err)
		}
		for rank, want := range c.want {
			if got := time.Duration(f.ranks[rank].clock); got != want {
				t.Errorf("rank %d ended at %v, want %v", rank, got, want)
			}
		}
	})
}

// TestRanksDealtInTurn: ranks as far apart as there are nodes share one, and neighbours do not.
func TestRanksDealtInTurn(t *testing.T) {
	network := plain()
	network.Cyclic = 3
	if got := network.NodesOf(5); got != 3 {
		t.Errorf("5 ranks on %d nodes, want 3", got)
	}
	if got := network.NodesOf(2); got != 2 {
		t.Errorf("2 ranks on %d nodes, want 2", got)
	}
	f, err := virtual(t, Config{Ranks: 5, Network: network}, func(n *node) {
		switch n.rank {
		case 0:
			n.send(3, 500)
			n.send(1, 500)
		case 1, 3:
			n.until(func() bool { return n.got == 1 })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	near := 1 + 500 + 10 + 1 + 500
	for rank, want := range map[int]int{1: 1 + 500 + 100 + 500 + 1000 + 100, 3: near} {
		if got := int(f.ranks[rank].clock); got != want {
			t.Errorf("rank %d ended at %d ns, want %d", rank, got, want)
		}
	}
}

// TestVirtualTimes compares clocks with the model by hand.
func TestVirtualTimes(t *testing.T) {
	cases := []timing{
		{"one message over the wire: o, n·G and L, o", 3, func(n *node) {
			switch n.rank {
			case 0:
				n.send(2, 500)
			case 2:
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{0: 100, 1: 0, 2: 100 + 500 + 1000 + 100}},
		{"two small ones are a gap apart", 3, func(n *node) {
			switch n.rank {
			case 0:
				n.send(2, 0)
			case 1:
				n.send(2, 0)
			case 2:
				n.until(func() bool { return n.got == 2 })
			}
		}, map[int]time.Duration{0: 100, 1: 100, 2: 100 + 1000 + 50 + 100 + 50}},
		{"two ranks of a node share its adapter", 4, func(n *node) {
			switch n.rank {
			case 0, 1:
				n.send(n.rank+2, 4000)
			default:
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{2: 100 + 4000 + 1000 + 100, 3: 100 + 8000 + 1000 + 100}},
		{"two nodes send to one: its adapter takes one after the other", 5, func(n *node) {
			switch n.rank {
			case 0, 2:
				n.send(4, 4000)
			case 4:
				n.until(func() bool { return n.got == 2 })
			}
		}, map[int]time.Duration{4: 100 + 1000 + 4000 + 4000 + 100}},
		{"within a node an eager message is copied twice", 2, func(n *node) {
			if n.rank == 0 {
				n.send(1, 500)
			} else {
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{0: 1 + 500, 1: 1 + 500 + 10 + 1 + 500}},
		{"lent memory is copied once, and is back after an acknowledgement", 2, func(n *node) {
			if n.rank == 0 {
				n.SendFrom(1, &transport.Header{Kind: transport.Data}, make([]byte, 500), 7)
				n.until(func() bool { return len(n.done) == 1 })
			} else {
				n.place = make([]byte, 500)
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{0: 1 + 10 + 1 + 500 + 10, 1: 1 + 10 + 1 + 500}},
		{"over the wire too", 3, func(n *node) {
			switch n.rank {
			case 0:
				n.SendFrom(2, &transport.Header{Kind: transport.Data}, make([]byte, 500), 7)
				n.until(func() bool { return len(n.done) == 1 })
			case 2:
				n.place = make([]byte, 500)
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{0: 100 + 1000 + 500 + 1000, 2: 100 + 1000 + 500 + 100}},
		{"a computing receiver is late by itself only", 3, func(n *node) {
			switch n.rank {
			case 0:
				n.send(2, 0)
			case 2:
				n.Compute(10 * time.Microsecond)
				n.until(func() bool { return n.got == 1 })
			}
		}, map[int]time.Duration{2: 10_000 + 100}},
	}
	for _, c := range cases {
		c.run(t)
	}
}

// disseminate is the barrier of Hensgen, Finkel and Manber: log2(P) rounds.
func disseminate(n *node, rounds, size int) {
	ranks, want := n.Fabric().Size(), 0 // messages of later steps may come early: they are counted
	for range rounds {
		for step := 1; step < ranks; step *= 2 {
			n.send((n.rank+step)%ranks, size)
			want++
			n.until(func() bool { return n.got >= want })
		}
	}
}

// TestVirtualRepeats runs the same program twice: every rank sees the same
// order and the same times.
func TestVirtualRepeats(t *testing.T) {
	run := func() (clocks []int64, orders [][]int) {
		f, err := virtual(t, Config{Ranks: 60, Network: FDR()}, func(n *node) {
			disseminate(n, 3, 100)
			n.Compute(time.Duration(n.rank) * 10)
			orders = append(orders, n.order)
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.ranks {
			clocks = append(clocks, f.ranks[i].clock)
		}
		return clocks, orders
	}
	clocks, orders := run()
	again, ordersAgain := run()
	if !slices.Equal(clocks, again) || !slices.EqualFunc(orders, ordersAgain, slices.Equal[[]int]) {
		t.Error("two runs of one program differ")
	}
	if slices.Max(clocks) == 0 {
		t.Error("no time passed")
	}
}

// TestVirtualBytes carries payloads, by copy and from lent memory that is
// overwritten when it comes back.
func TestVirtualBytes(t *testing.T) {
	want := bytes.Repeat([]byte("fisterra"), 5000)
	_, err := virtual(t, Config{Ranks: 3, Network: plain()}, func(n *node) {
		if n.rank > 0 {
			n.place = make([]byte, len(want))
			n.until(func() bool { return n.got == 2 })
			if !bytes.Equal(n.place, want) || !bytes.Equal(n.last, want[:300]) {
				t.Errorf("rank %d: bytes changed on the way", n.rank)
			}
			return
		}
		for peer := 1; peer <= 2; peer++ {
			buf := bytes.Clone(want)
			n.Send(peer, &transport.Header{Kind: 2}, buf[:300])
			n.SendFrom(peer, &transport.Header{Kind: transport.Data}, buf, uint64(peer))
			n.until(func() bool { _, ok := n.done[uint64(peer)]; return ok })
			if err := n.done[uint64(peer)]; err != nil {
				t.Errorf("SendFrom to rank %d: %v", peer, err)
			}
			clear(buf)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVirtualPull pulls memory within a node and over the wire.
func TestVirtualPull(t *testing.T) {
	f := New(Config{Ranks: 3, Network: plain()})
	src := bytes.Repeat([]byte{1, 2, 3, 4}, 1000)
	var key [3]transport.Key
	err := runOnMemory(t, f, func(rank int, p *MemoryProvider, n *node) {
		if rank == 0 {
			for peer := 1; peer <= 2; peer++ {
				key[peer], _ = p.Expose(peer, src)
				n.send(peer, 0)
			}
			return
		}
		n.until(func() bool { return n.got == 1 })
		began, dst := n.clock, make([]byte, len(src))
		p.Pull(0, key[rank], dst, 9)
		n.until(func() bool { return len(n.done) == 1 })
		if n.done[9] != nil || !bytes.Equal(dst, src) {
			t.Errorf("rank %d: pull: %v", rank, n.done[9])
		}
		// Request and payload: o + L + n·G within the node, o + 2L + n·G beyond it.
		want := int64(1 + 10 + 4000)
		if rank == 2 {
			want = 100 + 1000 + 1000 + 4000
		}
		if took := n.clock - began; took != want {
			t.Errorf("rank %d: pull took %d ns, want %d", rank, took, want)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVirtualFull: a sender without room goes on when the receiver polls.
func TestVirtualFull(t *testing.T) {
	const count = 100
	_, err := virtual(t, Config{Ranks: 3, Network: plain(), QueueBytes: 1000}, func(n *node) {
		switch n.rank {
		case 0:
			refused := 0
			for range count {
				for n.Send(2, &transport.Header{Kind: 2}, make([]byte, 200)) == transport.Full {
					refused++
					n.Sleep(n, time.Time{})
				}
			}
			if refused == 0 {
				t.Error("never Full")
			}
		case 2:
			n.until(func() bool { return n.got == count })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVirtualStuck: ranks that wait for what never comes are told so, and by
// name.
func TestVirtualStuck(t *testing.T) {
	_, err := virtual(t, Config{Ranks: 5, Network: plain()}, func(n *node) {
		if n.rank == 1 || n.rank == 4 {
			n.until(func() bool { return false })
			if !errors.Is(n.lost[0], ErrStuck) {
				t.Errorf("rank %d: lost %v", n.rank, n.lost)
			}
		}
	})
	if !errors.Is(err, ErrStuck) || !strings.Contains(err.Error(), "[1 4]") {
		t.Errorf("Run: %v, want ErrStuck and ranks [1 4]", err)
	}
	// One that does not look at its losses is taken down.
	before := runtime.NumGoroutine()
	_, err = virtual(t, Config{Ranks: 2, Network: plain()}, func(n *node) {
		for {
			n.Sleep(n, time.Time{})
		}
	})
	if !errors.Is(err, ErrStuck) {
		t.Errorf("Run: %v", err)
	}
	// A goroutine that Run has waited for may still be about to end.
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines before, %d after", before, n)
	}
}

// TestVirtualCancel: the context ends a run in which time goes on for ever.
func TestVirtualCancel(t *testing.T) {
	f := New(Config{Ranks: 1, Network: plain()})
	p, err := f.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Provider: p}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	naps := 0
	err = f.Run(ctx, func(int) {
		n.Lock()
		defer n.Unlock()
		for p.dead.Load() == nil {
			n.Poll(n)
			n.Sleep(n, n.Now().Add(time.Millisecond))
			if naps++; naps == 5000 {
				cancel(cause)
			}
		}
	})
	if !errors.Is(err, cause) {
		t.Errorf("Run: %v, want the context's cause", err)
	}
	if f.Elapsed() < 5*time.Second {
		t.Errorf("5000 naps of 1 ms took %v", f.Elapsed())
	}
}

// TestVirtualPanic: a panic in a rank comes out of Run and names the rank.
func TestVirtualPanic(t *testing.T) {
	defer func() {
		if r := fmt.Sprint(recover()); !strings.Contains(r, "rank 1: oh") {
			t.Errorf("recovered %q", r)
		}
	}()
	_, err := virtual(t, Config{Ranks: 3, Network: plain()}, func(n *node) {
		if n.rank == 1 {
			panic("oh")
		}
		n.until(func() bool { return n.got > 0 })
	})
	t.Errorf("Run returned %v", err)
}

// TestVirtualTestLoop: a program that polls in a loop makes time pass.
func TestVirtualTestLoop(t *testing.T) {
	_, err := virtual(t, Config{Ranks: 3, Network: plain()}, func(n *node) {
		if n.rank == 0 {
			n.Compute(50 * time.Microsecond)
			n.send(2, 8)
		}
		for n.rank == 2 && n.got == 0 {
			n.Poll(n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVirtualKill: peers of a killed rank are told after DetectAfter.
func TestVirtualKill(t *testing.T) {
	f, err := virtual(t, Config{Ranks: 4, Network: plain(), DetectAfter: time.Millisecond}, func(n *node) {
		if n.rank == 3 {
			n.Compute(time.Microsecond)
			n.Fabric().Kill(3)
		}
		n.until(func() bool { return len(n.lost) > 0 })
		if n.rank != 3 && (!errors.Is(n.lost[3], ErrKilled) || len(n.lost) != 1) {
			t.Errorf("rank %d: lost %v, want rank 3", n.rank, n.lost)
		}
		if n.rank == 3 && len(n.lost) != 3 {
			t.Errorf("the killed rank: lost %v, want everybody", n.lost)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.Elapsed() < time.Millisecond || f.Elapsed() > 2*time.Millisecond {
		t.Errorf("over after %v, want a little more than 1 ms", f.Elapsed())
	}
}

func TestBadConfig(t *testing.T) {
	bad := plain()
	bad.Wire.Bandwidth = 0
	nowhere := plain()
	nowhere.Cyclic = -1
	for _, cfg := range []Config{
		{}, {Ranks: -1}, {Ranks: 1, MinDelay: 2, MaxDelay: 1}, {Ranks: 1, SizesOnly: true}, {Ranks: 1, EagerBytes: -1}, {Ranks: 1, Network: bad},
		{Ranks: 1, Network: nowhere},
	} {
		f := New(cfg)
		if _, err := f.Open(0); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: Open: %v, want ErrConfig", cfg, err)
		}
		if err := f.Run(t.Context(), func(int) {}); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: Run: %v, want ErrConfig", cfg, err)
		}
	}
	f := New(Config{Ranks: 2})
	for _, rank := range []int{-1, 2} {
		if _, err := f.Open(rank); !errors.Is(err, ErrConfig) {
			t.Errorf("Open(%d) of 2: %v", rank, err)
		}
	}
}

// TestVirtualRepeatsLosses: what is lent to a rank that is lost or detached comes back in one order.
func TestVirtualRepeatsLosses(t *testing.T) {
	const lent = 20
	for name, part := range map[string]func(n *node){
		"killed":   func(n *node) { n.Fabric().Kill(2) },
		"detached": func(n *node) { n.Detach(2) },
	} {
		run := func() (back []uint64) {
			_, err := virtual(t, Config{Ranks: 3, Network: plain()}, func(n *node) {
				if n.rank != 1 {
					return
				}
				record := &completions{node: n, ops: &back}
				for op := range uint64(lent) {
					n.SendFrom(2, &transport.Header{Kind: transport.Data}, make([]byte, 1<<20), op)
				}
				part(n)
				for len(back) < lent {
					if n.Poll(record) == 0 {
						n.Sleep(n, time.Time{})
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			return back
		}
		if back, again := run(), run(); !slices.Equal(back, again) {
			t.Errorf("%s: operations completed in the orders %v and %v", name, back, again)
		}
	}
}

// completions records the order in which operations complete.
type completions struct {
	*node
	ops *[]uint64
}

func (c *completions) Complete(op uint64, err error) { *c.ops = append(*c.ops, op) }
