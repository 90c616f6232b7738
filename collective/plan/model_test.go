package plan

import "testing"

// TestFoldedPricesWhatAMessageBrought: on one host, and where it was measured.
func TestFoldedPricesWhatAMessageBrought(t *testing.T) {
	const passed, combined, folded = 4, 1, 2
	always := func(seconds float64) Curve { return Curve{{Seconds: seconds}} }
	m := &Model{Host: Link{OneWay: always(passed)}, Net: Link{OneWay: always(passed)}, Combine: always(combined), Folded: always(folded)}
	unmeasured := m.Clone()
	unmeasured.Folded = nil
	for _, k := range []struct {
		name  string
		model *Model
		nodes int
		want  float64
	}{
		{"one host", m, 1, passed + folded},
		{"not measured", unmeasured, 1, passed + combined},
		{"between hosts", m, 2, passed + combined},
	} {
		p := &Problem{Kind: Reduce, Size: 2, Count: 2, ElemBytes: 4}
		c := newCosting(p, k.model)
		if c.nodes = k.nodes; k.nodes == 2 {
			c.local = 1
		}
		if got := c.treeReduce(); got != k.want {
			t.Errorf("%s: %g s, want %g", k.name, got, k.want)
		}
	}
}

// TestCurvesAreAll: what is cloned and checked leaves no curve out.
func TestCurvesAreAll(t *testing.T) {
	m := &Model{}
	for _, c := range m.Curves() {
		*c.Curve = Curve{{Bytes: 8, Seconds: 1}}
	}
	d := m.Clone()
	for i, c := range d.Curves() {
		(*c.Curve)[0].Seconds = 2
		if got := (*m.Curves()[i].Curve)[0].Seconds; got != 1 {
			t.Errorf("%s of the clone is the original's", c.Name)
		}
		*c.Curve = Curve{{Bytes: -1}}
		if d.Check() == nil {
			t.Errorf("a negative length in %s is not found", c.Name)
		}
		*c.Curve = nil
	}
}
