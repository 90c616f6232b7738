package plan

import (
	"math"
	"strings"
	"testing"
)

// TestReducingOnArrival: its price is what was measured of it, on one host, and more where ranks share a processor.
func TestReducingOnArrival(t *testing.T) {
	const moved, combined, folded, merged, turn = 4, 1, 2, 3, 10
	always := func(seconds float64) Curve { return Curve{{Seconds: seconds}} }
	link := Link{OneWay: always(moved), Exchange: always(moved)}
	m := &Model{Host: link, Net: link, Combine: always(combined), Folded: always(folded), Merged: always(merged), Switch: turn}
	unmeasured := m.Clone()
	unmeasured.Folded, unmeasured.Merged = nil, nil
	for _, k := range []struct {
		name              string
		model             *Model
		nodes             int
		perCore           float64
		message, exchange float64 // want
	}{
		{"one host", m, 1, 1, moved + folded, merged},
		{"not measured", unmeasured, 1, 1, moved + combined, moved + combined},
		{"between hosts", m, 2, 1, moved + combined, moved + combined},
		{"two on a processor", m, 1, 2, 2*(moved+folded) + turn, 2*merged + turn},
	} {
		p := &Problem{Kind: Reduce, Size: 2, Count: 2, ElemBytes: 4, RanksPerCore: k.perCore}
		c := newCosting(p, k.model)
		if c.nodes = k.nodes; k.nodes == 2 {
			c.local = 1
		}
		for _, x := range []struct {
			name      string
			got, want float64
		}{{"message", c.treeReduce(), k.message}, {"exchange", c.circulantReduceScatter(), k.exchange}, {"step of a ring", c.nextFold(4), k.exchange}} {
			if x.got != x.want {
				t.Errorf("%s, %s: %g s, want %g", k.name, x.name, x.got, x.want)
			}
		}
	}
}

// TestOwnBlocks: what the ranks were called with costs what was measured of it, and else what messages and copies do.
func TestOwnBlocks(t *testing.T) {
	const moved, swapped, settled, copied, gathered, scattered = 40, 60, 50, 10, 47, 44
	always := func(seconds float64) Curve { return Curve{{Seconds: seconds}} }
	link := Link{OneWay: always(moved), Exchange: always(swapped)}
	measured := &Model{Host: link, Net: link, Copy: always(copied), Settled: always(settled), Gathered: always(gathered), Scattered: always(scattered)}
	unmeasured := measured.Clone()
	unmeasured.Settled, unmeasured.Gathered, unmeasured.Scattered = nil, nil, nil
	for _, k := range []struct {
		kind                 Kind
		plan                 string
		ranks                int
		measured, unmeasured float64 // want
	}{
		{Gather, "linear", 2, gathered, moved + gatheredOwn*copied},
		{Gather, "binomial", 2, gathered, moved + gatheredOwn*copied},
		{Scatter, "linear", 2, scattered, moved + scatteredOwn*copied},
		{Alltoall, "pairwise", 2, copied + settled, copied + swapped},
		{Alltoall, "pairwise", 4, copied + 3*settled, copied + 3*swapped},
		{Allgather, "ring", 2, copied + settled, copied + swapped},
		{Allgather, "ring", 4, copied + settled + 2*swapped, copied + 3*swapped},
	} {
		a, ok := Named(k.kind, k.plan)
		if !ok {
			t.Fatalf("no %s for %v", k.plan, k.kind)
		}
		p := &Problem{Kind: k.kind, Size: k.ranks, Count: 2, ElemBytes: 4}
		if got := a.Predict(p, measured); got != k.measured {
			t.Errorf("%v of %d ranks by %s: %g s, want %g", k.kind, k.ranks, k.plan, got, k.measured)
		}
		if got := a.Predict(p, unmeasured); got != k.unmeasured {
			t.Errorf("%v of %d ranks by %s, not measured: %g s, want %g", k.kind, k.ranks, k.plan, got, k.unmeasured)
		}
	}
}

// TestCurvesAreAll: what is cloned and checked leaves no curve out.
func TestCurvesAreAll(t *testing.T) {
	m := fullModel()
	d := m.Clone()
	for i, c := range d.Curves() {
		(*c.Curve)[0].Seconds = 2
		if got := (*m.Curves()[i].Curve)[0].Seconds; got != 1 {
			t.Errorf("%s of the clone is the original's", c.Name)
		}
		whole := *c.Curve
		*c.Curve = Curve{{Bytes: -1}}
		if d.Check() == nil {
			t.Errorf("a negative length in %s is not found", c.Name)
		}
		*c.Curve = whole
	}
}

// fullModel has a point in every curve.
func fullModel() *Model {
	m := &Model{Name: "full"}
	for _, c := range m.Curves() {
		*c.Curve = Curve{{Bytes: 8, Seconds: 1}}
	}
	return m
}

// TestCheckNamesTheFigure: what no plan can be priced by is refused, by name and value.
func TestCheckNamesTheFigure(t *testing.T) {
	if err := fullModel().Check(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(m *Model){
		"cross: -1 s":                  func(m *Model) { m.Cross = -1 },
		"overhead: NaN s":              func(m *Model) { m.Overhead = math.NaN() },
		"switch: +Inf s":               func(m *Model) { m.Switch = math.Inf(1) },
		"host.gap_per_byte: -1 s":      func(m *Model) { m.Host.Gap = -1 },
		"network.gap_per_byte: +Inf s": func(m *Model) { m.Net.Gap = math.Inf(1) },
		"host.one_way has no points":   func(m *Model) { m.Host.OneWay = nil },
		"network.exchange has no":      func(m *Model) { m.Net.Exchange = nil },
		"combine has no points":        func(m *Model) { m.Combine = nil },
		"copy has no points":           func(m *Model) { m.Copy = Curve{} },
	} {
		m := fullModel()
		spoil(m)
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	m := fullModel()
	m.Folded, m.Pieces, m.Given, m.Read, m.Mapped = nil, nil, nil, nil, nil
	if err := m.Check(); err != nil {
		t.Errorf("what need not be measured is missed: %v", err)
	}
}
