package osyield

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// twoProcessors are two that this thread may run on, beside what it may.
func twoProcessors(t *testing.T) (here, home int, allowed unix.CPUSet) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &allowed); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	var found []int
	for n := 0; n < len(allowed)*64 && len(found) < 2; n++ {
		if allowed.IsSet(n) {
			found = append(found, n)
		}
	}
	if len(found) < 2 {
		t.Skip("this process has one processor")
	}
	return found[0], found[1], allowed
}

func at(t *testing.T) int {
	t.Helper()
	n, err := processor()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mostly reports whether a thread that starts at one processor is at another after row, more often than
// not: the kernel may move it at any time. It must be allowed to run where it was before.
func mostly(t *testing.T, start, want int, allowed *unix.CPUSet, row func()) bool {
	t.Helper()
	const tries = 21
	there := 0
	for range tries {
		visit(start, allowed)
		row()
		if at(t) == want {
			there++
		}
		var now unix.CPUSet
		if err := unix.SchedGetaffinity(0, &now); err != nil || now != *allowed {
			t.Fatalf("may run on %v now, %v before: %v", now, *allowed, err)
		}
	}
	t.Logf("%d of %d times on processor %d", there, tries, want)
	return there > tries/2
}

func TestHome(t *testing.T) {
	here, home, allowed := twoProcessors(t)
	yields := func(n, nth int, took time.Duration) func(*Home) {
		return func(h *Home) {
			for range n {
				h.note(nth, took)
			}
		}
	}
	shared := func(n int) func(*Home) { return yields(n, 0, 10*switched) }
	yielded := func(n int) func(*Home) { return yields(n, 3, switched/2) }
	for _, c := range []struct {
		name  string
		home  Home
		start int
		row   func(*Home)
		want  int
	}{
		{"away", NewHome(home), here, shared(homeRow), home},
		{"there already", NewHome(home), home, shared(homeRow), home},
		{"the other way", NewHome(here), home, shared(homeRow), here},
		{"short row", NewHome(home), here, shared(homeRow - 1), here},
		{"broken row", NewHome(home), here, func(h *Home) { shared(homeRow - 1)(h); h.note(0, switched/2); shared(homeRow - 1)(h) }, here},
		{"row amid long waits", NewHome(home), here, func(h *Home) { shared(homeRow - 1)(h); h.note(1, switched/2); shared(1)(h) }, home},
		{"long waits", NewHome(home), here, yields(3*homeRow, 1, switched), here},
		{"no home", NewHome(-1), here, shared(homeRow * 3), here},
		{"away in a crowd", NewCrowdedHome(home), here, yielded(homeYields), home},
		{"away in a crowd for a moment", NewCrowdedHome(home), here, yielded(homeYields - 1), here},
		{"no home in a crowd", NewCrowdedHome(-1), here, yielded(homeYields * 3), here},
		{"not allowed there", NewHome(len(allowed)*64 - 1), here, shared(homeRow * 3), here},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !mostly(t, c.start, c.want, &allowed, func() { h := c.home; c.row(&h) }) {
				t.Errorf("from processor %d mostly not to %d", c.start, c.want)
			}
		})
	}
}

// A thread that is called away again and again goes home after longer and longer rows, until a yield finds nobody.
func TestHomePatience(t *testing.T) {
	here, home, allowed := twoProcessors(t)
	h := NewHome(home)
	for range 30 {
		visit(here, &allowed)
		for range h.need {
			h.note(0, switched)
		}
	}
	if h.need != homeRowMax {
		t.Errorf("goes after %d waits, want %d", h.need, homeRowMax)
	}
	if h.note(0, switched-1); h.need != homeRow {
		t.Errorf("goes after %d waits where it has been alone since, want %d", h.need, homeRow)
	}

	// In a crowd, until it is found at home.
	patient := 0
	if !mostly(t, here, home, &allowed, func() {
		h = NewCrowdedHome(home)
		for h.need < 8*homeYields {
			visit(here, &allowed)
			for range h.need {
				h.note(0, 0)
			}
		}
		for range h.need {
			h.note(0, 0)
		}
		if h.need != homeYields {
			patient++
		}
	}) {
		t.Error("a rank in a crowd does not go home any more")
	}
	if patient > 10 { // of 21: more than the kernel moves it in between
		t.Errorf("%d times a rank in a crowd goes home later although it was found there", patient)
	}
}

// A wait knows how long it lasts, in a crowd from a few yields on, and only then.
func TestWaitLasts(t *testing.T) {
	yields := func(h Home, n int) (w Wait) {
		for range n {
			h.Yield(&w)
		}
		return w
	}
	for _, c := range []struct {
		name   string
		home   Home
		yields int
		timed  bool
	}{
		{"alone", NewHome(-1), 1, true},
		{"in a crowd", NewCrowdedHome(-1), crowdLooks - 1, false},
		{"in a crowd, longer", NewCrowdedHome(-1), 2 * crowdLooks, true},
	} {
		begun := time.Now()
		w := yields(c.home, c.yields)
		if w.Yields != c.yields || c.timed != (w.Lasts > 0) || w.Lasts > time.Since(begun) {
			t.Errorf("%s: %d yields, %v; want %d, timed: %v", c.name, w.Yields, w.Lasts, c.yields, c.timed)
		}
	}
	crowded, w := NewCrowdedHome(-1), Wait{}
	for range 3 * crowdLooks {
		if took := crowded.Yield(&w); took != 0 {
			t.Fatalf("yield %d in a crowd took %v, want 0", w.Yields, took)
		}
	}
}
