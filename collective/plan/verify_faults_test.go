package plan

import (
	"strings"
	"testing"
)

// Each fault is planted in a correct plan; Verify must name it.
func TestVerifyFindsFaults(t *testing.T) {
	allreduce := Problem{Kind: Allreduce, Size: 5, Count: 11, ElemBytes: 4}
	first := func(pl *Plan, a Action) *Step {
		for i := range pl.Steps {
			if pl.Steps[i].Action == a {
				return &pl.Steps[i]
			}
		}
		panic("no such step")
	}
	faults := []struct {
		name    string
		problem Problem
		planner string
		rank    int
		spoil   func(*Plan)
		want    string
	}{
		{"nobody sends", Problem{Kind: Bcast, Size: 4, Count: 3, ElemBytes: 4}, "binomial", 0, func(p *Plan) {
			*first(p, Put) = Step{Action: Copy, N: 0}
		}, "that nobody sends"},
		{"nobody receives", allreduce, "ring", 2, func(p *Plan) {
			last := &p.Steps[len(p.Steps)-1]
			if last.Action != Get {
				panic("not a get")
			}
			*last = Step{Action: Put, Peer: last.Peer, N: 0}
		}, "nobody"},
		{"length", allreduce, "circulant", 1, func(p *Plan) { first(p, Fold).N-- }, "meets"},
		{"twice", Problem{Kind: Allreduce, Size: 4, Count: 3, ElemBytes: 4}, "doubling", 0, func(p *Plan) {
			p.Steps = append([]Step{{Action: Copy, N: 3, Dst: Loc{Recv, 0}, A: Loc{Send, 0}},
				{Action: Combine, N: 3, Dst: Loc{Recv, 0}, A: Loc{Recv, 0}, B: Loc{Send, 0}}}, p.Steps...)
			for i := range p.Rounds {
				p.Rounds[i] += 2
			}
		}, "counted twice"},
		{"order", Problem{Kind: Reduce, Size: 4, Count: 3, ElemBytes: 4, Ordered: true}, "binomial", 2, func(p *Plan) {
			first(p, Fold).Left = true
		}, "out of order"},
		{"unset", Problem{Kind: Bcast, Size: 4, Count: 3, ElemBytes: 4}, "binomial", 2, func(p *Plan) {
			p.Steps[0], p.Steps[1] = p.Steps[1], p.Steps[0]
		}, "before it is set"},
		{"wrong place", Problem{Kind: Gather, Size: 4, Count: 3, ElemBytes: 4}, "linear", 0, func(p *Plan) {
			n := len(p.Steps)
			p.Steps[n-1].Dst, p.Steps[n-2].Dst = p.Steps[n-2].Dst, p.Steps[n-1].Dst
		}, "of the result is"},
		{"overlap", Problem{Kind: Alltoall, Size: 4, Count: 3, ElemBytes: 4}, "linear", 3, func(p *Plan) {
			first(p, Get).Dst.Off = 1
		}, "same memory at once"},
		{"a copy beside a message that lands there", Problem{Kind: Gather, Size: 4, Count: 3, ElemBytes: 4}, "linear", 0, func(p *Plan) {
			first(p, Copy).Dst.Off = 2
		}, "same memory at once"},
		{"a copy of what a message beside it brings", Problem{Kind: Allgather, Size: 4, Count: 3, ElemBytes: 4}, "ring", 1, func(p *Plan) {
			first(p, Copy).A = Loc{Recv, 0}
		}, "same memory at once"},
		{"a copy over what a message beside it takes", Problem{Kind: Bcast, Size: 4, Count: 3, ElemBytes: 4}, "binomial", 0, func(p *Plan) {
			p.Steps = append(p.Steps, Step{Action: Copy, N: 1, Dst: Loc{Recv, 0}, A: Loc{Recv, 2}})
			p.Rounds[len(p.Rounds)-1]++
		}, "same memory at once"},
		{"input written", allreduce, "rabenseifner", 2, func(p *Plan) { first(p, Fold).Dst.Buf = Send }, "writes the user's input"},
		{"out of bounds", allreduce, "rabenseifner", 2, func(p *Plan) { first(p, Fold).Dst.Off = 10 }, "has 11 elements"},
		{"barrier left early", Problem{Kind: Barrier, Size: 4}, "dissemination", 0, nil, "before every rank has come"},
		{"circular wait", Problem{Kind: Barrier, Size: 2}, "dissemination", 0, nil, "that nobody sends"},
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			a, ok := Named(f.problem.Kind, f.planner)
			if !ok {
				t.Fatalf("no planner %s", f.planner)
			}
			at := func(r int) *Problem { return f.problem.at(r, nil, false, f.problem.Ordered) }
			if err := Verify(at, a.Build); err != nil {
				t.Fatalf("sound plan: %v", err)
			}
			err := Verify(at, func(p *Problem) *Plan {
				pl := a.Build(p)
				switch {
				case f.name == "barrier left early":
					pl.Rounds = pl.Rounds[:1]
				case f.name == "circular wait":
					put, get := pl.Steps[0], pl.Steps[1]
					pl.Steps, pl.Rounds = []Step{get, put}, []int32{1, 2}
				case p.Rank == f.rank:
					f.spoil(pl)
				}
				return pl
			})
			if err == nil || !strings.Contains(err.Error(), f.want) {
				t.Fatalf("got %v, want %q", err, f.want)
			}
		})
	}
}

// Folds of a round are done in order, but what one receives may land before that in the place of its result.
func TestFoldsLandInNobodysWay(t *testing.T) {
	fold := func(dst, a Loc) Step { return Step{Action: Fold, N: 2, Dst: dst, A: a} }
	out, in, work := Loc{Recv, 0}, Loc{Send, 0}, Loc{Work, 0}
	for _, c := range []struct {
		name          string
		first, second Step
		inPlace       bool
		sound         bool
	}{
		{"one after the other into the same", fold(out, in), fold(out, out), false, true},
		{"out of what the first makes", fold(work, in), fold(out, work), false, true},
		{"over what the first needs", fold(out, work), fold(work, in), false, false},
		{"over what the first makes", fold(out, in), fold(out, work), false, false},
		{"the same, as the input is the output", fold(out, work), fold(out, in), true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &symbolic{Problem: &Problem{Kind: Allreduce, Size: 3, Count: 2, InPlace: c.inPlace}}
			for i := range s.mem {
				s.mem[i] = make([]symbol, 2)
			}
			if err := s.disjoint([]Step{c.first, c.second}); (err == nil) != c.sound {
				t.Errorf("got %v, sound: %v", err, c.sound)
			}
		})
	}
}
