package plan

import "math/bits"

// builder collects the steps of one rank.
type builder struct {
	*Problem
	plan              Plan
	taken             int    // elements of scratch in use
	hostPart, netPart int    // elements, see part
	still             bool   // keep rounds without steps, so that all ranks count rounds alike
	copies            []Step // held back: to be done beside the messages of the round
}

// PartBytes is the size of the messages in which data to be reduced travel, but for Problem.NetPartBytes:
// small enough that a part is still in the second-level cache when it is
// added, large enough to be moved at full bandwidth.
const PartBytes = 256 << 10

// maxParts bounds the messages of one transfer: each costs its overheads, and
// for vectors far longer than any cache, parts that fit gain nothing.
const maxParts = 256

// partBytes is the size of parts within a host and between hosts.
func (p *Problem) partBytes() (host, net int) {
	host = max(PartBytes, (p.TotalBytes()+maxParts-1)/maxParts)
	return host, max(host, p.NetPartBytes)
}

func newBuilder(p *Problem, name string) *builder {
	b := &builder{Problem: p, plan: Plan{Name: name}}
	host, net := p.partBytes()
	b.hostPart, b.netPart = max(1, host/max(1, p.ElemBytes)), max(1, net/max(1, p.ElemBytes))
	return b
}

// part is how many elements of data to be reduced one message to or from a peer has.
func (b *builder) part(peer int) int {
	if b.Nodes != nil && b.Nodes.Of[peer] != b.Nodes.Of[b.Rank] {
		return b.netPart
	}
	return b.hostPart
}

// work reserves n elements of scratch.
func (b *builder) work(n int) Loc {
	l := Loc{Work, b.taken}
	b.taken += n
	b.plan.Work = max(b.plan.Work, b.taken)
	return l
}

// within lets a stage reserve scratch that is free again after it.
func (b *builder) within(stage func()) {
	taken := b.taken
	stage()
	b.taken = taken
}

// add adds a step to the round. Local steps are done in order: the copies that were held back go ahead of a local step,
// which may need what they copy.
func (b *builder) add(s Step) {
	if s.Action.Local() {
		b.catchUp()
	}
	b.plan.Steps = append(b.plan.Steps, s)
}

// catchUp adds the copies that were held back to stand behind the messages of the round, whether or not any messages have
// been added.
func (b *builder) catchUp() {
	b.plan.Steps = append(b.plan.Steps, b.copies...)
	b.copies = b.copies[:0]
}

func (b *builder) copy(dst, src Loc, n int) {
	if b.moves(dst, src, n) {
		b.add(Step{Action: Copy, N: n, Dst: dst, A: src})
	}
}

// moves reports whether a copy has anything to do: it is not empty, and not onto itself.
func (b *builder) moves(dst, src Loc, n int) bool {
	return n > 0 && dst != src && !(b.InPlace && dst.Buf != Work && src.Buf != Work && dst.Off == src.Off)
}

// beside holds a copy back, to be done while the messages of the round are under way, those that are added later included.
// Messages may read the source of the copy, and must not touch its destination.
func (b *builder) beside(dst, src Loc, n int) {
	if b.moves(dst, src, n) {
		b.copies = append(b.copies, Step{Action: Copy, N: n, Dst: dst, A: src})
	}
}

func (b *builder) combine(dst, left, right Loc, n int) {
	if n > 0 {
		b.add(Step{Action: Combine, N: n, Dst: dst, A: left, B: right})
	}
}

func (b *builder) put(peer int, src Loc, n int) {
	if n > 0 {
		b.add(Step{Action: Put, Peer: int32(peer), N: n, A: src})
	}
}

func (b *builder) get(peer int, dst Loc, n int) {
	if n > 0 {
		b.add(Step{Action: Get, Peer: int32(peer), N: n, Dst: dst})
	}
}

func (b *builder) putParts(peer int, src Loc, n int) {
	if n > 0 {
		b.add(Step{Action: PutParts, Peer: int32(peer), N: n, Part: b.part(peer), A: src})
	}
}

// fold stores a op incoming in dst: peer's operands come after those in a.
func (b *builder) fold(peer int, dst, a Loc, n int) {
	if n > 0 {
		b.add(Step{Action: Fold, Peer: int32(peer), N: n, Part: b.part(peer), Dst: dst, A: a})
	}
}

// foldLeft stores incoming op a in dst: peer's operands come first.
func (b *builder) foldLeft(peer int, dst, a Loc, n int) {
	if n > 0 {
		b.add(Step{Action: Fold, Left: true, Peer: int32(peer), N: n, Part: b.part(peer), Dst: dst, A: a})
	}
}

// signal and await are messages without data.
func (b *builder) signal(peer int) { b.add(Step{Action: Put, Peer: int32(peer)}) }
func (b *builder) await(peer int)  { b.add(Step{Action: Get, Peer: int32(peer)}) }

// next ends the round; empty rounds vanish.
func (b *builder) next() {
	b.catchUp()
	if b.still || b.open() {
		b.plan.Rounds = append(b.plan.Rounds, int32(len(b.plan.Steps)))
	}
}

// open: there are steps that belong to no round yet.
func (b *builder) open() bool {
	n := len(b.plan.Rounds)
	return len(b.plan.Steps) > 0 && (n == 0 || int(b.plan.Rounds[n-1]) < len(b.plan.Steps))
}

func (b *builder) done() *Plan {
	if b.catchUp(); b.open() {
		b.next()
	}
	return &b.plan
}

// group is the set of ranks among which a stage of a plan runs. Stages count
// in members of the group; rank translates.
type group struct {
	me, size int
	to       func(member int) int // nil: the identity
}

func everyone(p *Problem) group { return group{me: p.Rank, size: p.Size} }

// among is the group of the given ranks, of which this rank is number me.
func among(ranks []int32, me int) group {
	return group{me: me, size: len(ranks), to: func(m int) int { return int(ranks[m]) }}
}

// from numbers the members so that root is member 0.
func (g group) from(root int) group {
	if root == 0 {
		return g
	}
	return group{me: mod(g.me-root, g.size), size: g.size, to: func(m int) int { return g.rank(m + root) }}
}

func (g group) rank(member int) int {
	m := mod(member, g.size)
	if g.to == nil {
		return m
	}
	return g.to(m)
}

// paired is a group cut down to a power of two: each of the first members
// with an odd number joins the one before it.
type paired struct {
	group        // of those that stay
	joined  bool // this member has
	partner int  // rank of the other half of the pair, -1 without
}

func (g group) pairOff() paired {
	p2 := below2(g.size)
	extra := g.size - p2
	q := paired{partner: -1}
	q.size = p2
	q.to = func(m int) int {
		if m < extra {
			return g.rank(2 * m)
		}
		return g.rank(m + extra)
	}
	switch {
	case g.me >= 2*extra:
		q.me = g.me - extra
	case g.me%2 == 0:
		q.me, q.partner = g.me/2, g.rank(g.me+1)
	default:
		q.joined, q.partner = true, g.rank(g.me-1)
	}
	return q
}

func mod(a, n int) int {
	a %= n
	if a < 0 {
		a += n
	}
	return a
}

// rounds2 is ⌈log₂ n⌉.
func rounds2(n int) int {
	if n <= 1 {
		return 0
	}
	return bits.Len(uint(n - 1))
}

// below2 is the largest power of two that is at most n.
func below2(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

func isPow2(n int) bool { return n&(n-1) == 0 }

// layout says where each member's block lies: block i has n(i) elements from off(i).
type layout struct {
	size  int
	count int   // elements each, where offs is nil
	extra int   // so many blocks, spread over all, have one more
	offs  []int // size+1 prefix sums
}

// evenly cuts n elements into size blocks whose lengths differ by at most one, as do those of runs of equally many blocks:
// where the length of a run decides about the protocol, all runs go by the same one.
func evenly(n, size int) layout { return layout{size: size, count: n / size, extra: n % size} }

// blocks is the layout of a problem with a block per rank.
func (p *Problem) blocks() layout {
	if p.Counts == nil {
		return layout{size: p.Size, count: p.Count}
	}
	return laidOut(p.Counts)
}

// turned is the layout of the same blocks counted from block i on.
func (l layout) turned(i int) layout {
	t := layout{size: l.size, offs: make([]int, l.size+1)}
	for k := range l.size {
		t.offs[k+1] = t.offs[k] + l.n(mod(i+k, l.size))
	}
	return t
}

func laidOut(counts []int) layout {
	l := layout{size: len(counts), offs: make([]int, len(counts)+1)}
	for i, c := range counts {
		l.offs[i+1] = l.offs[i] + c
	}
	return l
}

func (l layout) off(i int) int {
	if l.offs != nil {
		return l.offs[i]
	}
	return i*l.count + i*l.extra/l.size
}

func (l layout) n(i int) int { return l.off(i+1) - l.off(i) }

func (l layout) total() int { return l.off(l.size) }

// span is a run of elements in a buffer that holds all blocks.
type span struct{ off, n int }

// ring returns the elements of k blocks from block i on, cyclically: one run, or two
// where they wrap.
func (l layout) ring(i, k int) [2]span {
	i = mod(i, l.size)
	if i+k <= l.size {
		return [2]span{{l.off(i), l.off(i+k) - l.off(i)}}
	}
	return [2]span{
		{l.off(i), l.off(l.size) - l.off(i)},
		{0, l.off(i + k - l.size)},
	}
}
