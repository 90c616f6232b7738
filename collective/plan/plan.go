// Package plan holds collectives as data. A planner is a pure function from a
// problem (which collective, how many ranks, how much data, where the ranks
// run) to the schedule of one rank: rounds of copies, reductions and messages
// on spans of three buffers. Plans are proved by Verify, priced by a Model and
// run by package collective; nothing in here communicates.
package plan

import (
	"fmt"
	"slices"
)

// Kind is a collective operation.
type Kind uint8

// The collectives, with their buffers in elements. P is the number of ranks,
// n is Problem.Count, and C is the sum of Problem.Counts (P·n where they are nil).
const (
	Barrier       Kind = iota // no data
	Bcast                     // Recv n on every rank; the root's is the message
	Reduce                    // Send n; Recv n at the root
	Allreduce                 // Send n; Recv n
	Gather                    // Send counts[rank]; Recv C at the root
	Allgather                 // Send counts[rank]; Recv C
	Scatter                   // Send C at the root; Recv counts[rank]
	ReduceScatter             // Send C; Recv counts[rank]
	Alltoall                  // Send P·n; Recv P·n, or SendCounts and RecvCounts
	Scan                      // Send n; Recv n
	Exscan                    // Send n; Recv n, untouched on rank 0
	kinds
)

// Kinds lists all collectives.
func Kinds() []Kind {
	ks := make([]Kind, kinds)
	for i := range ks {
		ks[i] = Kind(i)
	}
	return ks
}

var kindNames = [kinds]string{"barrier", "bcast", "reduce", "allreduce", "gather", "allgather", "scatter",
	"reduce_scatter", "alltoall", "scan", "exscan"}

func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("collective(%d)", uint8(k))
	}
	return kindNames[k]
}

// ParseKind is the reverse of String.
func ParseKind(name string) (Kind, error) {
	for i, n := range kindNames {
		if n == name {
			return Kind(i), nil
		}
	}
	return 0, fmt.Errorf("plan: no collective is called %q; they are %v", name, kindNames)
}

// Rooted reports whether one rank is the root.
func (k Kind) Rooted() bool { return k == Bcast || k == Reduce || k == Gather || k == Scatter }

// Reduces reports whether an operator is applied.
func (k Kind) Reduces() bool {
	return k == Reduce || k == Allreduce || k == ReduceScatter || k == Scan || k == Exscan
}

// HasBlocks reports whether the data are one block per rank: a block from each rank, or one for each.
func (k Kind) HasBlocks() bool {
	return k == Gather || k == Allgather || k == Scatter || k == ReduceScatter || k == Alltoall
}

// Problem is what a planner plans for: one rank's view of one collective.
// Everything except Rank, SendCounts, RecvCounts and InPlace is the same on every rank.
type Problem struct {
	Kind Kind
	Rank int
	Size int
	Root int

	Count      int   // elements, see Kind
	Counts     []int // elements per rank where they differ; nil: Count each
	SendCounts []int // Alltoall only, with RecvCounts: this rank's
	RecvCounts []int

	ElemBytes int
	// InPlace: Send and Recv are the same memory. For Gather and Allgather this
	// rank's block lies at its place in Recv, for Scatter the root's stays in Send.
	InPlace bool
	// Ordered: the operator does not commute; operands are combined in the order of ranks.
	Ordered bool
	// Nodes says which ranks share a host; nil: all do.
	Nodes *Nodes
	// NetPartBytes is the longest message between hosts in which data to be reduced travel; 0: PartBytes, as within them.
	NetPartBytes int
	// RanksPerCore is the mean number of ranks that take turns on a processor, on the host where it is highest. 0 is 1:
	// each rank has its own.
	RanksPerCore float64
}

// TotalBytes is the size that tables and prices go by: of the message for
// Bcast, Reduce, Allreduce and scans, of all blocks together otherwise.
func (p *Problem) TotalBytes() int {
	n := p.Count
	switch {
	case p.Kind == Barrier:
		return 0
	case p.Kind.HasBlocks():
		n = p.Size * p.Count
		if p.Counts != nil {
			n = 0
			for _, c := range p.Counts {
				n += c
			}
		}
	}
	return n * p.ElemBytes
}

// Buf is one of the buffers that steps work on.
type Buf uint8

const (
	Send Buf = iota // the user's input; never written unless it is also Recv
	Recv            // the user's output
	Work            // scratch of Plan.Work elements
)

func (b Buf) String() string { return [...]string{"send", "recv", "work"}[b] }

// Loc is an element of a buffer.
type Loc struct {
	Buf Buf
	Off int
}

func (l Loc) at(n int) Loc { return Loc{l.Buf, l.Off + n} }

func (l Loc) String() string { return fmt.Sprintf("%v+%d", l.Buf, l.Off) }

// Action is what a step does.
type Action uint8

const (
	// Copy copies N elements from A to Dst.
	Copy Action = iota
	// Combine stores A op B in Dst (B op A if Left).
	Combine
	// Put sends N elements from A to Peer.
	Put
	// Get receives N elements from Peer into Dst.
	Get
	// PutParts is Put in messages of at most Part elements, matched by Fold.
	PutParts
	// Fold receives what a PutParts sends and stores A op incoming in Dst
	// (incoming op A if Left), part by part while the next ones arrive. The
	// folds of a round are done in the order of their steps, so that several may add to the same memory.
	Fold
)

// Local reports whether a step concerns no other rank.
func (a Action) Local() bool { return a == Copy || a == Combine }

func (a Action) String() string {
	return [...]string{"copy", "combine", "put", "get", "put-parts", "fold"}[a]
}

// Step is one action of one rank.
type Step struct {
	Action Action
	Left   bool  // the second operand stands on the left
	Peer   int32 // rank, for messages
	N      int
	Part   int // elements per message of PutParts and Fold
	Dst    Loc
	A, B   Loc
}

func (s Step) String() string {
	switch s.Action {
	case Copy:
		return fmt.Sprintf("copy %v <- %v x%d", s.Dst, s.A, s.N)
	case Combine:
		if s.Left {
			return fmt.Sprintf("combine %v <- %v op %v x%d", s.Dst, s.B, s.A, s.N)
		}
		return fmt.Sprintf("combine %v <- %v op %v x%d", s.Dst, s.A, s.B, s.N)
	case Put, PutParts:
		return fmt.Sprintf("%v %v x%d -> rank %d", s.Action, s.A, s.N, s.Peer)
	case Get:
		return fmt.Sprintf("get %v x%d <- rank %d", s.Dst, s.N, s.Peer)
	}
	if s.Left {
		return fmt.Sprintf("fold %v <- rank %d op %v x%d", s.Dst, s.Peer, s.A, s.N)
	}
	return fmt.Sprintf("fold %v <- %v op rank %d x%d", s.Dst, s.A, s.Peer, s.N)
}

// Plan is the schedule of one rank. In each round the local steps that stand before the first message are done first, in
// order. Then all messages of the round are under way together, and the local steps that stand after the first message are
// done beside them, in order. The round ends when its messages have been sent and received.
type Plan struct {
	Name   string
	Steps  []Step
	Rounds []int32 // end of each round in Steps
	Work   int     // elements of scratch
}

// After is p with the rounds of a barrier before its own.
func (p *Plan) After(barrier *Plan) *Plan {
	both := *p
	both.Steps = slices.Concat(barrier.Steps, p.Steps)
	both.Rounds = slices.Clone(barrier.Rounds)
	for _, end := range p.Rounds {
		both.Rounds = append(both.Rounds, int32(len(barrier.Steps))+end)
	}
	return &both
}

// Round returns the steps of round i.
func (p *Plan) Round(i int) []Step {
	from := int32(0)
	if i > 0 {
		from = p.Rounds[i-1]
	}
	return p.Steps[from:p.Rounds[i]]
}

func (p *Plan) String() string {
	s := p.Name
	for i := range p.Rounds {
		s += fmt.Sprintf("\n round %d:", i)
		for _, st := range p.Round(i) {
			s += "\n  " + st.String()
		}
	}
	return s
}

// Parts is the number of messages in which the elements of a PutParts or Fold travel.
func (s *Step) Parts() int {
	if s.Part <= 0 || s.N <= s.Part {
		return 1
	}
	return (s.N + s.Part - 1) / s.Part
}

// Piece returns where part i of the elements begins and how many it has. The last two parts share what the others leave: a
// short last part would be sent before the receiver has asked for the parts ahead of it, and would be received in place of
// one of them if they are given up.
func (s *Step) Piece(i int) (from, size int) {
	parts := s.Parts()
	from = i * s.Part
	left := s.N - (parts-2)*s.Part // for the last two
	switch {
	case parts == 1:
		return 0, s.N
	case i == parts-1:
		return s.N - left/2, left / 2
	case i == parts-2:
		return from, left - left/2
	}
	return from, s.Part
}

// Nodes says which ranks share a host. It is the same on every rank.
type Nodes struct {
	Of      []int32   // rank -> node
	Members [][]int32 // node -> its ranks, ascending

	// Consecutive: the ranks of each node follow one another, nodes in order.
	Consecutive bool
}

// NewNodes groups ranks by host name; nodes are numbered in order of their first rank.
func NewNodes(size int, host func(rank int) string) *Nodes {
	n := &Nodes{Of: make([]int32, size), Consecutive: true}
	seen := make(map[string]int32)
	for r := range size {
		h := host(r)
		id, ok := seen[h]
		if !ok {
			id = int32(len(n.Members))
			seen[h] = id
			n.Members = append(n.Members, nil)
		}
		n.Of[r] = id
		if r > 0 && n.Of[r-1] != id && ok {
			n.Consecutive = false
		}
		n.Members[id] = append(n.Members[id], int32(r))
	}
	return n
}

// Largest is the greatest number of ranks on one node.
func (n *Nodes) Largest() int {
	m := 0
	for _, ranks := range n.Members {
		m = max(m, len(ranks))
	}
	return m
}

// spread reports whether there are both several nodes and several ranks on one.
func (n *Nodes) spread() bool {
	return n != nil && len(n.Members) > 1 && len(n.Members) < len(n.Of)
}

// dealt reports whether ranks are dealt to the nodes in turn.
func (n *Nodes) dealt() bool {
	for r, node := range n.Of {
		if int(node) != r%len(n.Members) {
			return false
		}
	}
	return true
}
