package shm

import (
	"slices"
	"testing"
	"time"
)

func TestFreshness(t *testing.T) {
	row := func(p pace, n int) []pace { return slices.Repeat([]pace{p}, n) }
	slow := row(paceSlow, slowPulls)
	short := row(paceSlow, slowPulls-1)
	for _, c := range []struct {
		name  string
		paces []pace
		want  int
	}{
		{"nothing known", nil, 0},
		{"quick", row(paceQuick, 20), 0},
		{"interrupts", slices.Concat(short, row(paceQuick, 1), short), 0},
		{"slow", slow, leastPassBytes},
		{"slow, not always timed", slices.Concat(short, row(paceUnknown, 9), row(paceSlow, 1)), leastPassBytes},
		{"slow again", slices.Concat(slow, slow), 2 * leastPassBytes},
		{"quick in between", slices.Concat(slow, row(paceQuick, 1), slow), leastPassBytes},
		{"always slow", slices.Repeat(slow, 40), mostPassBytes},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f freshness
			for _, p := range c.paces {
				f.judge(p)
			}
			const n = 1 << 20
			around := 0
			for f.around(n) {
				around += n
			}
			if around != c.want {
				t.Errorf("%d bytes go through the ring, want %d", around, c.want)
			}
		})
	}
}

func TestPaceOf(t *testing.T) {
	const once, n = 0.01, 1 << 20 // 10 µs within a core
	for took, want := range map[time.Duration]pace{5 * time.Microsecond: paceQuick, 20 * time.Microsecond: paceQuick, 40 * time.Microsecond: paceSlow} {
		if got := paceOf(took, n, once); got != want {
			t.Errorf("a copy in %v: pace %d, want %d", took, got, want)
		}
	}
}

// TestFreshMemoryTakesTheRing: after pulls that were slow messages go through the ring, but for very long ones, and are
// pulled again later.
func TestFreshMemoryTakesTheRing(t *testing.T) {
	rs := strangersOf(t)
	_, src := exported(t, rs[0], farPullBytes)
	rs[0].Withdraw(1, known(t, rs, 0, src))
	rs[1].habit.once = 1e-9 // every copy is slow
	dst := make([]byte, farPullBytes)
	pulls := 0
	for {
		key, ok := rs[0].Expose(1, src[:timedBytes])
		if !ok {
			break
		}
		if pulls++; pulls > 100 {
			t.Fatal("slow pulls go on")
		}
		delete(rs[1].pulled, 7)
		rs[1].Pull(0, key, dst[:timedBytes], 7)
		pump(t, rs, func() bool { _, over := rs[1].pulled[7]; return over })
		rs[0].Withdraw(1, key)
	}
	if pulls != slowPulls {
		t.Errorf("after %d slow pulls the ring is used, want %d", pulls, slowPulls)
	}
	if key, ok := rs[0].Expose(1, src); !ok {
		t.Error("a very long message is not exposed")
	} else {
		rs[0].Withdraw(1, key)
	}
	refused := 0
	for {
		if key, ok := rs[0].Expose(1, src[:timedBytes]); ok {
			rs[0].Withdraw(1, key)
			break
		}
		if refused++; refused > leastPassBytes/timedBytes {
			t.Fatal("pulls are not tried again")
		}
	}
}
