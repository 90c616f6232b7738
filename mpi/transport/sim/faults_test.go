package sim

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// bubble opens a fabric in a synctest bubble, in which its clock moves only
// when every rank sleeps.
func bubble(t *testing.T, cfg Config, f func(t *testing.T, fabric *Fabric, nodes []*node)) {
	synctest.Test(t, func(t *testing.T) {
		fabric := New(cfg)
		t.Logf("seed %d", fabric.Seed())
		nodes := make([]*node, cfg.Ranks)
		for i := range nodes {
			p, err := fabric.Open(i)
			if err != nil {
				t.Fatal(err)
			}
			nodes[i] = &node{Provider: p}
		}
		f(t, fabric, nodes)
	})
}

// within polls and sleeps until cond holds or the time is over, and reports
// whether it holds.
func (n *node) within(d time.Duration, cond func() bool) bool {
	for deadline := n.Now().Add(d); !cond(); {
		if n.Poll(n) > 0 {
			continue
		}
		if !n.Now().Before(deadline) {
			return false
		}
		n.Sleep(n, deadline)
	}
	return true
}

// TestDelays: each message is late by what the seed says, whatever the
// machine does meanwhile.
func TestDelays(t *testing.T) {
	const count = 50
	run := func(seed uint64) (order []int, at []time.Duration) {
		bubble(t, Config{Ranks: 4, Seed: seed, MinDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond}, func(t *testing.T, f *Fabric, nodes []*node) {
			for i := range count {
				for from := 1; from < 4; from++ {
					n := nodes[from]
					n.Lock()
					n.Send(0, &transport.Header{Kind: 2, Tag: int32(i)}, nil)
					n.Unlock()
				}
			}
			n := nodes[0]
			n.Lock()
			defer n.Unlock()
			begun := n.Now()
			for n.got < 3*count {
				was := n.got
				if !n.within(time.Second, func() bool { return n.got > was }) {
					t.Fatalf("%d of %d messages within a second", n.got, 3*count)
				}
				at = append(at, n.Now().Sub(begun))
			}
			order = n.order
		})
		return order, at
	}
	order, at := run(5)
	again, atAgain := run(5)
	if !slices.Equal(order, again) || !slices.Equal(at, atAgain) {
		t.Error("one seed, two different runs")
	}
	if other, _ := run(6); slices.Equal(order, other) {
		t.Error("two seeds, the same order")
	}
	if slices.IsSorted(order) {
		t.Error("no message overtook one of another pair")
	}
	if at[0] < time.Millisecond || at[len(at)-1] > 20*time.Millisecond {
		t.Errorf("messages came from %v to %v, want within 1 ms to 20 ms", at[0], at[len(at)-1])
	}
}

// TestCut: what is sent over a cut link is lost in silence, and the link
// works again after Restore.
func TestCut(t *testing.T) {
	bubble(t, Config{Ranks: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond}, func(t *testing.T, f *Fabric, nodes []*node) {
		send := func(from, to int) {
			nodes[from].Lock()
			defer nodes[from].Unlock()
			if out := nodes[from].Send(to, &transport.Header{Kind: 2}, nil); out != transport.Sent {
				t.Errorf("Send from %d to %d: outcome %d", from, to, out)
			}
		}
		got := func(to, want int, what string) {
			t.Helper()
			n := nodes[to]
			n.Lock()
			defer n.Unlock()
			n.within(time.Hour, func() bool { return n.got > want })
			if n.got != want || len(n.lost) > 0 {
				t.Errorf("%s: rank %d has %d messages and lost %v, want %d and none", what, to, n.got, n.lost, want)
			}
		}
		send(0, 1)
		f.Cut(0, 1) // the message under way is lost too
		send(0, 1)
		send(1, 0)
		send(0, 2)
		got(1, 0, "cut")
		got(0, 0, "cut")
		got(2, 1, "beside the cut")
		f.Restore(0, 1)
		send(0, 1)
		got(1, 1, "restored")
		f.Partition([]int{0, 1}, []int{2})
		send(0, 1)
		send(0, 2)
		send(2, 1)
		got(1, 2, "partitioned")
		got(2, 1, "partitioned")
		f.Heal()
		send(2, 1)
		got(1, 3, "healed")
	})
}

// TestCutLent: memory lent to a message that is lost comes back when it is
// asked for.
func TestCutLent(t *testing.T) {
	bubble(t, Config{Ranks: 2}, func(t *testing.T, f *Fabric, nodes []*node) {
		n := nodes[0]
		n.Lock()
		defer n.Unlock()
		f.Cut(0, 1)
		n.SendFrom(1, &transport.Header{Kind: transport.Data}, make([]byte, 1<<20), 3)
		if n.within(time.Hour, func() bool { return len(n.done) > 0 }) {
			t.Fatalf("the send completed over a cut link: %v", n.done)
		}
		n.Abandon(3)
		if !n.within(time.Second, func() bool { return len(n.done) > 0 }) || !errors.Is(n.done[3], ErrAbandoned) {
			t.Errorf("after Abandon: completions %v, want ErrAbandoned", n.done)
		}
	})
}

// TestKill: the peers are told after DetectAfter, and the killed rank's own
// calls fail.
func TestKill(t *testing.T) {
	bubble(t, Config{Ranks: 3, DetectAfter: 3 * time.Second}, func(t *testing.T, f *Fabric, nodes []*node) {
		begun := time.Now()
		nodes[1].Lock()
		nodes[1].Send(0, &transport.Header{Kind: 2}, nil) // sent in time: it arrives
		nodes[1].Unlock()
		f.Kill(1)
		f.Kill(1) // once more is nothing
		for _, rank := range []int{0, 2} {
			n := nodes[rank]
			n.Lock()
			n.send(1, 10) // into the void
			if !n.within(time.Minute, func() bool { return n.lost[1] != nil }) || !errors.Is(n.lost[1], ErrKilled) {
				t.Errorf("rank %d: lost %v, want rank 1 killed", rank, n.lost)
			}
			if out := n.Send(1, &transport.Header{Kind: 2}, nil); out != transport.Gone {
				t.Errorf("Send to the dead: outcome %d, want Gone", out)
			}
			n.Unlock()
		}
		if nodes[0].got != 1 {
			t.Errorf("rank 0 got %d messages of the dead, want the one sent before", nodes[0].got)
		}
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("the loss was known after %v, want 3s", took)
		}
		n := nodes[1]
		n.Lock()
		defer n.Unlock()
		if out := n.Send(0, &transport.Header{Kind: 2}, nil); out != transport.Gone {
			t.Errorf("Send by the dead: outcome %d, want Gone", out)
		}
		n.within(time.Second, func() bool { return len(n.lost) == 2 })
		if len(n.lost) != 2 || !errors.Is(n.lost[0], ErrKilled) {
			t.Errorf("the dead rank lost %v, want everybody", n.lost)
		}
	})
}

// TestCloseSender: a rank that closes while the fabric still refers to its
// memory may use that memory at once.
func TestCloseSender(t *testing.T) {
	bubble(t, Config{Ranks: 2, MinDelay: time.Second, MaxDelay: time.Second}, func(t *testing.T, f *Fabric, nodes []*node) {
		n := nodes[0]
		buf := []byte("what was meant")
		n.Lock()
		n.SendFrom(1, &transport.Header{Kind: 2}, buf, 1)
		n.Unlock()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		copy(buf, "used otherwise")
		n = nodes[1]
		n.Lock()
		defer n.Unlock()
		if !n.within(time.Minute, func() bool { return len(n.lost) == 1 }) || !errors.Is(n.lost[0], ErrHungUp) {
			t.Errorf("lost %v, want rank 0 hung up", n.lost)
		}
		if string(n.last) != "what was meant" {
			t.Errorf("received %q", n.last)
		}
	})
}
