package plan

import (
	"math"
	"testing"
)

// TestCrowd: ranks that take turns on a processor pay for each hand-over, so that
// what has few of them becomes the cheapest.
func TestCrowd(t *testing.T) {
	m := &Model{
		Host:    Link{OneWay: Linear(1e-6, 1e-9), Exchange: Linear(1e-6, 1e-9)},
		Combine: Linear(0, 1e-10), Copy: Linear(0, 1e-10), Overhead: 1e-7, Switch: 50e-6,
	}
	alone := &Problem{Kind: Allreduce, Size: 8, Count: 2048, ElemBytes: 4}
	crowded := *alone
	crowded.RanksPerCore = 4
	if got := Rank(&crowded, m)[0]; got.Name != "doubling" {
		t.Errorf("8 ranks on 2 cores take %s, want doubling, which has the fewest steps", got.Name)
	}
	if got := Rank(alone, m)[0]; got.Name == "doubling" {
		t.Errorf("8 ranks with a core each take %s although its bytes cost more", got.Name)
	}
	for _, a := range Planners(Allreduce) {
		if a.Why(alone) == "" && a.Predict(&crowded, m) < 4*a.Predict(alone, m) {
			t.Errorf("%s costs %g s on a core each and %g s where 4 share one", a.Name, a.Predict(alone, m), a.Predict(&crowded, m))
		}
	}
	measured := *m
	measured.Switch = 0 // measured in the crowd: nothing to add
	for _, a := range Planners(Allreduce) {
		if a.Why(alone) == "" && a.Predict(&crowded, &measured) != a.Predict(alone, &measured) {
			t.Errorf("%s: turns are charged to a model that does not know them", a.Name)
		}
	}
}

// Messages between the root and the others leave the processors to one pair at a time, and blocks that all read from the root go over all
// processors at once.
func TestCrowdOfARoot(t *testing.T) {
	const n, each = 1 << 20, 1e-9
	m := &Model{
		Host:    Link{OneWay: Linear(0, each), Exchange: Linear(0, each)},
		Combine: Linear(0, 0), Copy: Linear(0, 0), Read: Linear(0, each/2), Switch: 1e-9,
	}
	for _, k := range []struct {
		kind Kind
		want float64 // in messages
	}{
		{Gather, 3},
		{Scatter, 3. / 2 / 2}, // three read in half the time, over two processors
	} {
		p := &Problem{Kind: k.kind, Size: 4, Count: n / 4, ElemBytes: 4, RanksPerCore: 2}
		linear, _ := Named(k.kind, "linear")
		if got := linear.Predict(p, m) / (n * each); math.Abs(got-k.want) > 0.01*k.want {
			t.Errorf("%v takes as long as %g messages, want %g", k.kind, got, k.want)
		}
	}
}
