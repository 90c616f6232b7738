package osyield

import (
	"testing"
	"time"
)

func TestPauseOf(t *testing.T) {
	const clock = 30
	for _, c := range []struct {
		each time.Duration // of the processor's own
		want uint32
	}{{20, 2}, {40, 1}, {140, 1}, {1, 45}, {0, 45}} {
		if got := pauseOf(c.each*pauseSample+clock, clock); got.count != c.want {
			t.Errorf("%d ns each: %d of them, want %d", c.each, got.count, c.want)
		}
	}
}

func TestPause(t *testing.T) {
	p := NewPause()
	t.Logf("%d of the processor's own, %g ns each, and %g for the clock", p.count, p.each, p.clock)
	begun := time.Now()
	for range 1000 {
		p.Pass()
	}
	t.Logf("%v each", time.Since(begun)/1000)
	if p.count < 1 || p.count > pauseSample {
		t.Errorf("%d of the processor's own", p.count)
	}
}

// TestPauseLearns: the pause follows how far the writer is, there and back, and nothing else.
func TestPauseLearns(t *testing.T) {
	p := pauseOf(23*pauseSample, 0)
	for i, c := range []struct {
		took float64
		want uint32
	}{
		{25, 1},  // between neighbours
		{130, 3}, // and on processors that share less
		{25, 1},
		{-5, 1},      // a look quicker than the clock
		{100_000, 1}, // interrupted
		{500, 10},
	} {
		for range 30 {
			p.learn(c.took)
		}
		if p.count != c.want {
			t.Errorf("step %d, looks of %g ns: %d of the processor's own, want %d", i, c.took, p.count, c.want)
		}
	}
	before := p.count
	p.learn(p.fetch * 1.1)
	if p.count > before+1 {
		t.Errorf("one look changes %d to %d", before, p.count)
	}
}

func TestLook(t *testing.T) {
	p := NewPause()
	timed := 0
	for range 10 * timedWait {
		if p.Timed() {
			timed++
		}
	}
	if timed != 10 {
		t.Errorf("%d waits of %d are timed, want 10", timed, 10*timedWait)
	}
	for _, c := range []struct {
		comes, most int
		found       bool
		looks       int
	}{{1, 5, true, 1}, {3, 5, true, 3}, {5, 5, true, 5}, {6, 5, false, 5}, {1, 0, false, 0}} {
		looks, before := 0, p.fetch
		found := p.Look(c.most, func() bool { looks++; return looks == c.comes })
		if found != c.found || looks != c.looks {
			t.Errorf("what comes at look %d of %d: %v after %d", c.comes, c.most, found, looks)
		}
		if !found && p.fetch != before {
			t.Errorf("something was learned of %d looks in vain", looks)
		}
	}

	var none Pause
	for range 2 * timedWait {
		if none.Pass(); none.Timed() {
			t.Fatal("the zero Pause times a wait")
		}
	}
}
