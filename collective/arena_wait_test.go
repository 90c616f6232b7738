package collective

import "testing"

// Of two ranks that come first by turns each knows when it is its turn. One that always comes first, or never, does not wait for
// nothing: the other would be as late, or there already.
func TestComesFirst(t *testing.T) {
	for _, c := range []struct {
		name  string
		vain  []bool // looks at the other rank, one after the other
		first bool   // expected after the last one
	}{
		{"at first", nil, false},
		{"came at once", []bool{false, false, false}, false},
		{"always first", []bool{true, true, true}, false},
		{"by turns, was first", []bool{true, false, true}, false},
		{"by turns, was last", []bool{false, true, false}, true},
		{"came at once since", []bool{true, false, false}, false},
	} {
		parts := []*part{new(part), new(part)}
		a := newArena(&state{rank: 0}, parts, 1, []int{0, 1})
		m := &meeting{arena: a, entry: &entry{}}
		for _, vain := range c.vain {
			a.turn++
			if vain {
				a.waited[1] = a.waited[1]<<1 | 1
				continue
			}
			parts[1][slot(a.turn)] = a.turn
			if err := m.see(t.Context(), 1, oneRank(1)); err != nil {
				t.Fatal(err)
			}
		}
		if got := a.waited[1].comesFirst(); got != c.first {
			t.Errorf("%s: expects to come first: %v", c.name, got)
		}
	}
}

// A rank looks on for one of another core when those of its own core have come, which might need the core for what others wait
// for, or when it waits for nobody else. It never does so for one of its own core.
func TestRunsElsewhere(t *testing.T) {
	parts := make([]*part, 5)
	for r := range parts {
		parts[r] = new(part)
	}
	a := newArena(&state{rank: 1}, parts, 2.5, []int{0, 1, 0, 1, 1})
	all := &meeting{arena: a, entry: &entry{flow: flow{needs: a.everybody()}}}
	root := &meeting{arena: a, entry: &entry{flow: flow{needs: oneRank(2)}}}
	mate := &meeting{arena: a, entry: &entry{flow: flow{needs: oneRank(3)}}}
	a.turn = 3
	for _, c := range []struct {
		comes int
		all   bool
	}{{0, false}, {3, false}, {4, true}} {
		parts[c.comes][slot(a.turn)] = a.turn
		for r := range parts {
			elsewhere := r == 0 || r == 2
			if got, want := all.runsElsewhere(r), c.all && elsewhere; got != want {
				t.Errorf("with rank %d, of all for rank %d: %v", c.comes, r, got)
			}
			if got, want := root.runsElsewhere(r), (c.all || r == 2) && elsewhere; got != want {
				t.Errorf("with rank %d, of rank 2 alone for rank %d: %v", c.comes, r, got)
			}
		}
		if mate.runsElsewhere(3) {
			t.Errorf("with rank %d: for one of its own core", c.comes)
		}
	}
	if a.turn++; all.runsElsewhere(2) {
		t.Error("those of the turn before count")
	}
}
