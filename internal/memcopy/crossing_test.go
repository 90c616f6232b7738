package memcopy

import (
	"bytes"
	"testing"
)

func TestCrossing(t *testing.T) {
	around := func(c *Crossing) (n int) {
		for c.Around() {
			n++
		}
		return n
	}
	const near, far = false, true
	for _, c := range []struct {
		name  string
		slow  []bool
		want  int
		timed bool // the next piece is timed
	}{
		{"none", nil, 0, true},
		{"near", []bool{near, near, near, near}, 0, false},
		{"far", []bool{far, far, far}, farPieces, true},
		{"not yet", []bool{far, far}, 0, true},
		{"interrupts", []bool{far, far, near, far, far}, 0, true},
		{"far again", []bool{far, far, far, far}, farPieces, true},
		{"near again", []bool{far, far, far, near}, farPieces, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var x Crossing
			for _, slow := range c.slow {
				x.judge(slow)
			}
			if timed := x.untimed == 0; timed != c.timed {
				t.Errorf("%d pieces until the next one that is timed", x.untimed)
			}
			if got := around(&x); got != c.want {
				t.Errorf("%d go around, want %d", got, c.want)
			}
		})
	}
	var x Crossing
	for range slowPieces + 1 {
		x.judge(far)
	}
	around(&x)
	if x.judge(near); around(&x) != 0 {
		t.Error("near now, and still around")
	}
}

// Whatever the reader's distance is, what is copied is the same, and pieces are timed as often as is said.
func TestCrossingCopies(t *testing.T) {
	const never, always = 1e9, 1e-9
	src := make([]byte, pastBytes+1)
	for i := range src {
		src[i] = byte(i*7 + i/251)
	}
	for _, slow := range []float64{0, never, always} {
		var x Crossing
		for i := range 2*farPieces + 5 {
			n := len(src) - i%3
			dst := make([]byte, n)
			if x.Copy(dst, src[:n], slow); !bytes.Equal(dst, src[:n]) {
				t.Fatalf("slow from %g ns a byte on, piece %d: not what was copied", slow, i)
			}
		}
		if far := x.far > 0; far != (slow == always) {
			t.Errorf("slow from %g ns a byte on: far is %v", slow, far)
		}
	}
	var x Crossing
	for range 100 {
		x.Copy(make([]byte, pastBytes-1), src[:pastBytes-1], always)
	}
	if x != (Crossing{}) {
		t.Error("short pieces count")
	}
}
