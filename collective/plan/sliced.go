package plan

import "fmt"

// The sliced allreduce: reduce-scatter inside each node, an allreduce of each
// slice among the nodes by the ranks that hold it, allgather inside each node. All ranks drive the
// network, and each byte crosses it twice. Inside nodes, whose sizes have small factors, the steps are
// butterflies of mixed radix (Ruefenacht, Bull, Booth 2017), so that no run of slices is cut in two; among
// nodes, of which there is any number, the circulant pattern (Träff 2024) with fewer steps of more messages
// (the radix of Wilkins et al., "Generalized collective algorithms for the exascale era", 2023).
//
// There are as many slices as ranks on the fullest node; on nodes with fewer
// ranks some hold two or more, so that a short last node slows no other one down.

// slicing is one rank's view of how n elements are cut.
type slicing struct {
	*Problem
	slices layout // of the elements
	base   int    // first element
	local  group
	held   layout // elements by member of this node
	mine   held   // slices this rank holds
}

// held is the slices from lo up to hi.
type held struct{ lo, hi int }

// slicing cuts n elements from base on.
func (p *Problem) slicing(base, n int) slicing {
	members := p.Nodes.Members[p.Nodes.Of[p.Rank]]
	s := slicing{Problem: p, base: base, slices: evenly(n, p.Nodes.Largest())}
	s.local = among(members, indexOf(members, p.Rank))
	s.held = layout{size: len(members), offs: make([]int, len(members)+1)}
	for i := range s.held.offs {
		s.held.offs[i] = s.slices.off(firstSlice(i, len(members), s.slices.size))
	}
	s.mine = heldBy(s.local.me, len(members), s.slices.size)
	return s
}

// firstSlice is the first of the slices that a member of a node holds. Members
// with one slice more than others are spread, so that neighbours together hold equal shares.
func firstSlice(member, members, slices int) int { return member * slices / members }

func heldBy(member, members, slices int) held {
	return held{firstSlice(member, members, slices), firstSlice(member+1, members, slices)}
}

// holders is the group of the ranks that hold slice j, one of each node.
func (s *slicing) holders(j int) group {
	return group{me: int(s.Nodes.Of[s.Rank]), size: len(s.Nodes.Members), to: func(node int) int {
		members := s.Nodes.Members[node]
		return int(members[((j+1)*len(members)-1)/s.slices.size])
	}}
}

// The three stages, each a plan of its own. `in` and `out` hold all elements.

func (s *slicing) scatter(in, out Loc) *Plan {
	b := s.stage()
	b.reduceScatterAny(s.local, s.held, in.at(s.base), out.at(s.base), out.at(s.base+s.held.off(s.local.me)))
	return b.done()
}

// cross reduces slice j among its holders where it lies.
func (s *slicing) cross(out Loc, j int, skips []int) *Plan {
	b := s.stage()
	g, mine := s.holders(j), out.at(s.base+s.slices.off(j))
	b.allreduceCirculant(g, evenly(s.slices.n(j), g.size), skips, mine, mine)
	return b.done()
}

// crossTurned is cross in w, of the slice's length, with the blocks counted from this rank's own on. It costs a copy into w
// and one out of it, so that no run of blocks wraps and each partner gets one message. It ends with a round of local steps
// only.
func (s *slicing) crossTurned(w, out Loc, j int, skips []int) *Plan {
	b := s.stage()
	g, mine := s.holders(j), out.at(s.base+s.slices.off(j))
	l := evenly(s.slices.n(j), g.size)
	runs := l.ring(g.me, g.size)
	b.copy(w, mine.at(runs[0].off), runs[0].n)
	b.copy(w.at(runs[0].n), mine.at(runs[1].off), runs[1].n)
	b.allreduceCirculant(g.from(g.me), l.turned(g.me), skips, w, w)
	b.copy(mine.at(runs[0].off), w, runs[0].n)
	b.copy(mine.at(runs[1].off), w.at(runs[0].n), runs[1].n)
	b.next()
	return b.done()
}

func (s *slicing) gather(out Loc) *Plan {
	b := s.stage()
	b.allgatherAny(s.local, s.held, out.at(s.base))
	return b.done()
}

func (s *slicing) stage() *builder {
	b := newBuilder(s.Problem, "")
	b.still = true
	return b
}

// timeline merges plans that run at the same time: each is placed at a
// round, and rounds that coincide become one.
type timeline [][]Step

func (t *timeline) place(at int, p *Plan) {
	for len(*t) < at+len(p.Rounds) {
		*t = append(*t, nil)
	}
	for i := range p.Rounds {
		(*t)[at+i] = append((*t)[at+i], p.Round(i)...)
	}
}

// merge appends the rounds to a plan. Steps of plans placed first come
// first, but for local steps, which precede all messages: plans on one timeline
// must not depend on each other within a round.
func (b *builder) merge(t timeline) {
	for _, steps := range t {
		for _, messages := range []bool{false, true} {
			for _, st := range steps {
				if st.Action.Local() != messages {
					b.add(st)
				}
			}
		}
		b.next()
	}
}

// slicedRadix is the radix of a crossing that nothing hides: three messages take
// little longer than one.
const slicedRadix = 4

// localSteps is the greatest number of steps that a node takes in itself.
func (n *Nodes) localSteps() int {
	most := 0
	for _, ranks := range n.Members {
		most = max(most, stepsAny(len(ranks)))
	}
	return most
}

// allreduceSliced runs the three stages one after the other.
func allreduceSliced(p *Problem) *Plan {
	b := newBuilder(p, slicedName(1))
	s := p.slicing(0, p.Count)
	in, out := Loc{Send, 0}, Loc{Recv, 0}
	// Stages begin in the same round on all ranks, also on those of smaller nodes.
	local, skips := p.Nodes.localSteps(), radixSkips(len(p.Nodes.Members), slicedRadix)
	var t timeline
	t.place(0, s.scatter(in, out))
	for j := s.mine.lo; j < s.mine.hi; j++ {
		t.place(local, s.crossTurned(b.work(s.slices.n(j)), out, j, skips))
	}
	t.place(local+2*len(skips), s.gather(out)) // its first round follows the last copies
	b.merge(t)
	return b.done()
}

// pipelineSkips are the skips among nodes, in as many steps as a stage takes inside a node, so that equally many long
// rounds meet; but in no fewer steps than radixSkips by slicedRadix, and in no more than halvingSkips. The radices grow,
// for the first steps have the long messages.
func pipelineSkips(nodes, localSteps int) []int {
	steps := min(max(localSteps, len(radixSkips(nodes, slicedRadix))), rounds2(nodes))
	var skips []int
	for t := nodes; t > 1; steps-- {
		radix := max(2, root(t, steps))
		t = (t + radix - 1) / radix
		skips = append(skips, t)
	}
	return skips
}

// root is the integer part of the k-th root of n.
func root(n, k int) int {
	r := 1
	for power(r+1, k) <= n {
		r++
	}
	return r
}

func power(n, k int) int {
	p := 1
	for range k {
		p *= n
	}
	return p
}

// allreducePipelined returns the planner that cuts the vector into segments
// and overlaps the stages: while the slices of two segments cross the network, the one after
// them is reduced and the one before them collected inside the nodes. Long rounds meet long rounds,
// since reduce-scatters begin and allgathers end with theirs.
func allreducePipelined(segments int) func(*Problem) *Plan {
	return func(p *Problem) *Plan {
		b := newBuilder(p, slicedName(segments))
		in, out := Loc{Send, 0}, Loc{Recv, 0}
		local := p.Nodes.localSteps()
		skips := pipelineSkips(len(p.Nodes.Members), local)
		// A crossing lasts two steps, so that one segment is scattered and another
		// gathered beside it.
		step := max(len(skips), local)
		cut := ramped(p.Count, segments)
		var t timeline
		// Stage by stage, so that messages of one pair are in the same order on both sides.
		for stage := range 3 {
			for i := range segments {
				s := p.slicing(cut.off(i), cut.n(i))
				switch stage {
				case 0:
					t.place(i*step, s.scatter(in, out))
				case 1:
					for j := s.mine.lo; j < s.mine.hi; j++ {
						t.place((i+1)*step, s.cross(out, j, skips))
					}
				case 2:
					// Its long last rounds meet those of the next segment's crossing.
					g := s.gather(out)
					t.place((i+4)*step-len(g.Rounds), g)
				}
			}
		}
		b.merge(t)
		return b.done()
	}
}

// ramped cuts n elements into segments that grow at the beginning and shrink
// at the end, where nothing else is there to hide a crossing.
func ramped(n, segments int) layout {
	weight := rampWeights(segments)
	sum := 0
	for _, w := range weight {
		sum += w
	}
	l := layout{size: segments, offs: make([]int, segments+1)}
	upTo := 0
	for i, w := range weight {
		upTo += w
		l.offs[i+1] = n/sum*upTo + n%sum*upTo/sum
	}
	return l
}

// rampWeights are the relative lengths of the segments: 1, 2, ... up to a third of their number, and down again.
func rampWeights(segments int) []int {
	w := make([]int, segments)
	for i := range w {
		w[i] = min(i+1, segments-i, max(1, segments/3))
	}
	return w
}

func slicedName(segments int) string {
	if segments == 1 {
		return "node+sliced"
	}
	return fmt.Sprintf("node+sliced/%d", segments)
}
