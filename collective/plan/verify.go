package plan

import (
	"fmt"
	"slices"
)

// Verify executes the plans of all ranks symbolically and reports the first
// thing wrong with them: a message nobody sends or nobody receives, partners that disagree on
// a length, ranks that wait for each other, an operand counted twice or out of
// order, memory read before it is set or used by two messages at once, a
// result that is not what the collective promises. Messages are taken to be synchronous: a send ends when
// its receive has been posted, so that a verified plan needs no buffering.
//
// problem gives each rank's view; build makes its plan.
func Verify(problem func(rank int) *Problem, build func(*Problem) *Plan) error {
	size := problem(0).Size
	v := &verifier{
		size:   size,
		ranks:  make([]*symbolic, size),
		queues: make(map[[2]int32]*queue),
		sets:   newSets(),
	}
	for r := range v.ranks {
		p := problem(r)
		v.ranks[r] = v.newSymbolic(p, build(p))
	}
	if err := v.run(); err != nil {
		return fmt.Errorf("%s %s of %d ranks: %w", v.ranks[0].plan.Name, v.ranks[0].Kind, size, err)
	}
	return nil
}

// symbol stands for a value: element index of the operands of a set of ranks.
type symbol struct {
	index int32
	set   int32 // interned; unset marks memory nobody has written
}

const unset = -1

// symbolic is one rank being executed.
type symbolic struct {
	*Problem
	plan    *Plan
	mem     [3][]symbol
	round   int
	pending int // messages of the current round
	folds   []folding
	known   int32
}

// folding is a Fold of the current round with what has come for it.
type folding struct {
	Step
	in []symbol
}

// receive is a Get, or a Fold with its number among the folds of the round.
type receive struct {
	Step
	fold int
}

type queue struct {
	puts  []Step
	gets  []receive
	known []int32 // what the senders of puts knew
}

type verifier struct {
	size   int
	ranks  []*symbolic
	queues map[[2]int32]*queue
	sets   *sets
	ready  []int
}

// lengths of the user's buffers.
func (p *Problem) lengths() (send, recv int) {
	mine, all := p.Count, 0
	switch p.Kind {
	case Gather, Allgather, Scatter, ReduceScatter:
		l := p.blocks()
		mine, all = l.n(p.Rank), l.total()
	}
	switch p.Kind {
	case Barrier:
		return 0, 0
	case Bcast:
		return 0, p.Count
	case Reduce:
		if p.Rank != p.Root {
			return p.Count, 0
		}
	case Gather:
		if p.Rank != p.Root {
			return mine, 0
		}
		return mine, all
	case Allgather:
		return mine, all
	case Scatter:
		if p.Rank != p.Root {
			return 0, mine
		}
		return all, mine
	case ReduceScatter:
		if p.InPlace {
			return all, all
		}
		return all, mine
	case Alltoall:
		x := p.exchange()
		return x.send.total(), x.recv.total()
	}
	return p.Count, p.Count
}

func (v *verifier) newSymbolic(p *Problem, plan *Plan) *symbolic {
	s := &symbolic{Problem: p, plan: plan, known: v.sets.only(p.Rank)}
	send, recv := p.lengths()
	s.mem[Recv] = fresh(recv)
	s.mem[Work] = fresh(plan.Work)
	own := func(m []symbol, from int) {
		only := v.sets.only(p.Rank)
		for i := range m {
			m[i] = symbol{int32(from + i), only}
		}
	}
	switch {
	case p.Kind == Bcast:
		if p.Rank == p.Root {
			own(s.mem[Recv], 0)
		}
	case p.InPlace && (p.Kind == Gather || p.Kind == Allgather):
		l := p.blocks()
		own(s.mem[Recv][l.off(p.Rank):l.off(p.Rank+1)], 0)
	case p.InPlace && p.Kind == Scatter:
		s.mem[Send] = fresh(send)
		own(s.mem[Send], 0)
		s.mem[Recv] = nil
	case p.InPlace:
		own(s.mem[Recv][:send], 0)
		s.mem[Send] = s.mem[Recv][:send]
	default:
		s.mem[Send] = fresh(send)
		own(s.mem[Send], 0)
	}
	return s
}

func fresh(n int) []symbol {
	m := make([]symbol, n)
	for i := range m {
		m[i].set = unset
	}
	return m
}

func (v *verifier) run() error {
	for r, s := range v.ranks {
		s.round = -1
		v.ready = append(v.ready, r)
	}
	for len(v.ready) > 0 {
		r := v.ready[len(v.ready)-1]
		v.ready = v.ready[:len(v.ready)-1]
		if err := v.enter(v.ranks[r]); err != nil {
			return fmt.Errorf("rank %d, round %d: %w", r, v.ranks[r].round, err)
		}
	}
	for pair, q := range v.queues {
		if len(q.gets) > 0 {
			return fmt.Errorf("rank %d waits in round %d for %q that nobody sends", pair[1], v.ranks[pair[1]].round, q.gets[0].Step)
		}
		if len(q.puts) > 0 {
			return fmt.Errorf("nobody receives %q of rank %d", q.puts[0], pair[0])
		}
	}
	for r, s := range v.ranks {
		if err := v.result(s); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

// enter starts the next rounds of a rank until one has messages to wait for.
func (v *verifier) enter(s *symbolic) error {
	for s.pending == 0 {
		if err := v.fold(s); err != nil {
			return err
		}
		if s.round+1 == len(s.plan.Rounds) {
			return nil
		}
		s.round++
		steps := s.plan.Round(s.round)
		if err := s.disjoint(steps); err != nil {
			return err
		}
		for _, st := range steps {
			if err := v.start(s, st); err != nil {
				return fmt.Errorf("%q: %w", st, err)
			}
		}
	}
	return nil
}

// fold does the folds of a round, whose messages have all come, in order.
func (v *verifier) fold(s *symbolic) error {
	for _, f := range s.folds {
		if err := v.combine(s.Ordered, f.Step, s.mem[f.Dst.Buf][f.Dst.Off:][:f.N], s.mem[f.A.Buf][f.A.Off:][:f.N], f.in); err != nil {
			return fmt.Errorf("%q: %w", f.Step, err)
		}
	}
	s.folds = s.folds[:0]
	return nil
}

func (v *verifier) start(s *symbolic, st Step) error {
	switch st.Action {
	case Copy:
		return v.move(s.mem[st.Dst.Buf][st.Dst.Off:][:st.N], s.mem[st.A.Buf][st.A.Off:][:st.N])
	case Combine:
		return v.combine(s.Ordered, st, s.mem[st.Dst.Buf][st.Dst.Off:][:st.N],
			s.mem[st.A.Buf][st.A.Off:][:st.N], s.mem[st.B.Buf][st.B.Off:][:st.N])
	}
	me, peer := int32(s.Rank), st.Peer
	if peer == me || peer < 0 || int(peer) >= v.size {
		return fmt.Errorf("bad peer %d", peer)
	}
	s.pending++
	if st.Action == Put || st.Action == PutParts {
		q := v.queue(me, peer)
		q.puts = append(q.puts, st)
		q.known = append(q.known, s.known)
		return v.match(me, peer, q)
	}
	q := v.queue(peer, me)
	q.gets = append(q.gets, receive{st, len(s.folds)})
	if st.Action == Fold {
		s.folds = append(s.folds, folding{Step: st})
	}
	return v.match(peer, me, q)
}

func (v *verifier) queue(from, to int32) *queue {
	q := v.queues[[2]int32{from, to}]
	if q == nil {
		q = &queue{}
		v.queues[[2]int32{from, to}] = q
	}
	return q
}

// match moves the oldest message of a pair once both sides are there.
func (v *verifier) match(from, to int32, q *queue) error {
	if len(q.puts) == 0 || len(q.gets) == 0 {
		return nil
	}
	put, get := q.puts[0], q.gets[0]
	known := q.known[0]
	q.puts, q.gets, q.known = q.puts[1:], q.gets[1:], q.known[1:]
	a, b := v.ranks[from], v.ranks[to]
	if put.N != get.N || (put.Action == PutParts) != (get.Action == Fold) || get.Action == Fold && put.Part != get.Part {
		return fmt.Errorf("rank %d's %q meets rank %d's %q", from, put, to, get.Step)
	}
	b.known = v.sets.union(b.known, known)
	src := a.mem[put.A.Buf][put.A.Off:][:put.N]
	if get.Action == Fold {
		b.folds[get.fold].in = slices.Clone(src)
	} else if err := v.move(b.mem[get.Dst.Buf][get.Dst.Off:][:get.N], src); err != nil {
		return fmt.Errorf("rank %d's %q: %w", to, get.Step, err)
	}
	for _, s := range []*symbolic{a, b} {
		if s.pending--; s.pending == 0 {
			v.ready = append(v.ready, s.Rank)
		}
	}
	return nil
}

func (v *verifier) move(dst, src []symbol) error {
	for i, s := range src {
		if s.set == unset {
			return fmt.Errorf("element %d is moved before it is set", i)
		}
	}
	copy(dst, src)
	return nil
}

func (v *verifier) combine(ordered bool, st Step, dst, a, b []symbol) error {
	if st.Left {
		a, b = b, a
	}
	for i := range dst {
		if a[i].set == unset || b[i].set == unset {
			return fmt.Errorf("element %d is combined before it is set", i)
		}
		if a[i].index != b[i].index {
			return fmt.Errorf("elements %d and %d are combined", a[i].index, b[i].index)
		}
		if v.sets.overlap(a[i].set, b[i].set) {
			return fmt.Errorf("element %d: an operand is counted twice", a[i].index)
		}
		if ordered && !v.sets.adjacent(a[i].set, b[i].set) {
			return fmt.Errorf("element %d: operands are out of order", a[i].index)
		}
		dst[i] = symbol{a[i].index, v.sets.union(a[i].set, b[i].set)}
	}
	return nil
}

// result compares what a rank has at the end with what it should have.
func (v *verifier) result(s *symbolic) error {
	all := v.sets.all(v.size)
	var want []symbol
	fill := func(n, from int, set int32) {
		for i := range n {
			want = append(want, symbol{int32(from + i), set})
		}
	}
	got := s.mem[Recv]
	switch s.Kind {
	case Barrier:
		if s.known != all {
			return fmt.Errorf("leaves before every rank has come")
		}
	case Bcast:
		fill(s.Count, 0, v.sets.only(s.Root))
	case Reduce, Gather:
		if s.Rank != s.Root {
			return nil
		}
		if s.Kind == Reduce {
			fill(s.Count, 0, all)
			break
		}
		fallthrough
	case Allgather:
		l := s.blocks()
		for r := range v.size {
			fill(l.n(r), 0, v.sets.only(r))
		}
	case Allreduce:
		fill(s.Count, 0, all)
	case Scatter:
		if s.InPlace {
			return nil
		}
		l := s.blocks()
		fill(l.n(s.Rank), l.off(s.Rank), v.sets.only(s.Root))
	case ReduceScatter:
		l := s.blocks()
		fill(l.n(s.Rank), l.off(s.Rank), all)
		got = got[:len(want)]
	case Alltoall:
		for r := range v.size {
			l := v.ranks[r].exchange().send
			fill(l.n(s.Rank), l.off(s.Rank), v.sets.only(r))
		}
	case Scan:
		fill(s.Count, 0, v.sets.all(s.Rank+1))
	case Exscan:
		if s.Rank == 0 {
			return nil
		}
		fill(s.Count, 0, v.sets.all(s.Rank))
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("element %d of the result is %v of ranks %v, not %v of ranks %v", i,
				got[i].index, v.sets.list(got[i].set), want[i].index, v.sets.list(want[i].set))
		}
	}
	return nil
}
