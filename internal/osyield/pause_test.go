package osyield

import (
	"testing"
	"time"
)

func TestPauseOf(t *testing.T) {
	for _, c := range []struct {
		each time.Duration // of the processor's own
		want uint32
	}{{20, 3}, {25, 2}, {45, 1}, {140, 1}, {1, 60}, {0, pauseSample}} {
		if got := pauseOf(c.each * pauseSample); got.count != c.want {
			t.Errorf("%d ns each: %d of them, want %d", c.each, got.count, c.want)
		}
	}
}

func TestPause(t *testing.T) {
	p := NewPause()
	t.Logf("%d of the processor's own", p.count)
	begun := time.Now()
	for range 1000 {
		p.Pass()
	}
	t.Logf("%v each", time.Since(begun)/1000)
	if p.count < 1 || p.count > pauseSample {
		t.Errorf("%d of the processor's own", p.count)
	}
}
