package plan

import "math"

// costing prices the algorithms for one problem in closed form, so that a
// choice costs the same for four ranks and for four thousand. Every rank computes the
// same figures: nothing in here depends on the own rank.
type costing struct {
	*Model
	alone             *Model  // the model for ranks with a processor each
	shares            float64 // ranks among which a processor's time is divided
	size              int     // ranks
	n                 int     // bytes of the vector, or of all blocks together
	block             float64 // average bytes of a block
	nodes             int
	local             int     // ranks on the fullest node
	near              bool    // the ranks of each node are consecutive
	dealt             bool    // ranks are dealt to the nodes in turn
	hostPart, netPart float64 // longest message whose data are reduced on arrival, in bytes
}

func newCosting(p *Problem, m *Model) *costing {
	c := &costing{Model: m.crowd(p.RanksPerCore), alone: m, shares: m.Shares(p.RanksPerCore), size: p.Size, n: p.TotalBytes(), nodes: 1, local: p.Size, near: true}
	if p.Kind == Alltoall {
		c.block = float64(p.Count * p.ElemBytes)
		c.n = p.Size * p.Count * p.ElemBytes
	} else {
		c.block = float64(c.n) / float64(p.Size)
	}
	host, net := p.partBytes()
	c.hostPart, c.netPart = float64(host), float64(net)
	if p.Nodes != nil {
		c.nodes, c.local, c.near = len(p.Nodes.Members), p.Nodes.Largest(), p.Nodes.Consecutive
		c.dealt = p.Nodes.dealt()
	}
	return c
}

func (c *costing) rounds() int { return rounds2(c.size) }

// inside: partners at this distance share a node, most of them.
func (c *costing) inside(distance int) bool {
	return c.nodes == 1 || c.near && 2*distance <= c.local
}

// pass is a message at a distance while few others are under way.
func (c *costing) pass(distance int, bytes float64) float64 {
	if c.inside(distance) {
		return c.Host.OneWay.At(int(bytes))
	}
	return c.Net.OneWay.At(int(bytes))
}

// swap is a step in which every rank sends bytes over a distance.
func (c *costing) swap(distance int, bytes float64) float64 {
	if c.inside(distance) {
		return c.Host.Exchange.At(int(bytes))
	}
	return c.net(min(distance, c.local), bytes)
}

// net is an exchange among nodes in which so many ranks of each node take part.
func (c *costing) net(ranks int, bytes float64) float64 {
	return c.Net.Exchange.At(int(bytes)) + float64(ranks-1)*c.Net.Gap*bytes
}

// next is a step of a ring: neighbours only.
func (c *costing) next(bytes float64) float64 {
	t := c.Host.Exchange.At(int(bytes))
	if c.nodes == 1 {
		return t
	}
	crossing := 1
	if !c.near {
		crossing = c.local
	}
	if c.nodes == c.size {
		return c.net(1, bytes)
	}
	return max(t, c.net(crossing, bytes))
}

// fold is the time to combine data that have just come.
func (c *costing) fold(bytes float64) float64 {
	if c.nodes == 1 {
		return c.Folded.Or(c.Combine).At(int(bytes))
	}
	return c.Combine.At(int(bytes))
}

// parted is the time for data that travel in parts of so many bytes, t(part) each. It is at least t(bytes): data that do
// not fit the caches come from memory also if each part would fit.
func parted(bytes, part float64, t func(float64) float64) float64 {
	if bytes <= part {
		return t(bytes)
	}
	return max(bytes/part*t(part), t(bytes))
}

// part is the size of parts that travel over a distance.
func (c *costing) part(distance int) float64 {
	if c.inside(distance) {
		return c.hostPart
	}
	return c.netPart
}

// swapFold is a swap whose data are reduced on arrival.
func (c *costing) swapFold(distance int, bytes float64) float64 {
	if c.nodes == 1 && len(c.Merged) > 0 {
		return c.Merged.At(int(bytes))
	}
	return parted(bytes, c.part(distance), func(b float64) float64 { return c.swap(distance, b) + c.fold(b) })
}

func (c *costing) passFold(distance int, bytes float64) float64 {
	return parted(bytes, c.part(distance), func(b float64) float64 { return c.pass(distance, b) + c.fold(b) })
}

// nextFold is a step of a ring whose data are reduced on arrival.
func (c *costing) nextFold(bytes float64) float64 {
	if c.nodes == 1 {
		return c.swapFold(1, bytes)
	}
	return parted(bytes, c.part(1), func(b float64) float64 { return c.next(b) + c.fold(b) })
}

// over sums a step over the distances 1, 2, 4, ... below size.
func over(size int, step func(distance int) float64) float64 {
	t := 0.0
	for d := 1; d < size; d *= 2 {
		t += step(d)
	}
	return t
}

// odd is the price of pairing off ranks beyond a power of two.
func (c *costing) odd(step func() float64) float64 {
	if isPow2(c.size) {
		return 0
	}
	return step()
}

func (c *costing) all() float64 { return float64(c.n) }

// share is one rank's part of the vector.
func (c *costing) share() float64 { return c.all() / float64(c.size) }

// cut is the length of a run of d blocks, or of the size-d blocks that are missing if these are fewer.
func (c *costing) cut(d int) float64 { return float64(min(d, c.size-d)) * c.share() }

// Barriers.

func (c *costing) dissemination() float64 {
	return over(c.size, func(d int) float64 { return c.swap(d, 0) })
}

func (c *costing) doublingBarrier() float64 {
	return over(below2(c.size), func(d int) float64 { return c.swap(d, 0) }) +
		c.odd(func() float64 { return 2 * c.pass(below2(c.size), 0) })
}

func (c *costing) nodeBarrier() float64 {
	return 2*c.within(0) + float64(rounds2(c.nodes))*c.net(1, 0)
}

// within is a tree inside a node; between is one among the nodes' leaders.
func (c *costing) within(bytes float64) float64 {
	return float64(rounds2(c.local)) * c.Host.OneWay.At(int(bytes))
}

func (c *costing) between(bytes float64) float64 {
	return float64(rounds2(c.nodes)) * c.Net.OneWay.At(int(bytes))
}

// Movers.

func (c *costing) linearBcast() float64 {
	return c.pass(c.size/2, c.all()) + float64(c.size-2)*(c.pass(c.size/2, c.all())-c.pass(c.size/2, 0)+c.Overhead)
}

func (c *costing) treeBcast() float64 {
	return over(c.size, func(d int) float64 { return c.pass(d, c.all()) })
}

// chainCost prices a pipelined chain of segments.
func chainCost(segmentBytes int) func(*costing) float64 {
	return func(c *costing) float64 {
		steps, _, t := c.chain(segmentBytes)
		return steps * t
	}
}

// foldingChainCost prices a pipelined chain whose ranks fold each segment before they pass it on.
func foldingChainCost(segmentBytes int) func(*costing) float64 {
	return func(c *costing) float64 {
		steps, segment, t := c.chain(segmentBytes)
		return steps * (t + max(c.fold(segment), c.fold(c.all())*segment/max(1, c.all())))
	}
}

// chain returns the number of steps of a pipelined chain, the bytes of a segment, and the time to pass a segment on.
func (c *costing) chain(segmentBytes int) (steps, segment, pass float64) {
	segment = min(float64(segmentBytes), c.all())
	steps = float64(c.size-2) + max(1, c.all()/max(1, segment))
	if c.size == 2 { // one link: in segments a message is no quicker than as a whole
		return steps, segment, max(c.pass(1, segment), c.pass(1, c.all())*segment/max(1, c.all()))
	}
	return steps, segment, c.next(segment)
}

func (c *costing) scatterDown() float64 {
	return over(c.size, func(d int) float64 { return c.pass(d, c.cut(d)) })
}

func (c *costing) scatterRing() float64 { return c.scatterDown() + c.ringAllgather() }

func (c *costing) scatterBruck() float64 { return c.scatterDown() + c.cyclicAllgather() }

func (c *costing) nodeBcast() float64 { return c.between(c.all()) + c.within(c.all()) }

func (c *costing) nodeScatterBcast() float64 {
	net := over(c.nodes, func(d int) float64 {
		b := float64(min(d, c.nodes-d)) * c.all() / float64(c.nodes)
		return c.Net.OneWay.At(int(b)) + c.net(1, b)
	})
	host := over(c.local, func(d int) float64 {
		b := float64(min(d, c.local-d)) * c.all() / float64(c.local)
		return c.Host.OneWay.At(int(b)) + c.Host.Exchange.At(int(b))
	})
	return net + host
}

func (c *costing) linearGather() float64 { return c.GatheredOwn(int(c.block)) + c.rootOfAll() }

func (c *costing) linearScatter() float64 {
	return c.ScatteredOwn(int(c.block)) + min(c.rootOfAll(), c.readByAll())
}

// rootOfAll is one message between the root and each of the others.
func (c *costing) rootOfAll() float64 {
	one := c.passAlone(c.size/2, c.block)
	return one + float64(c.size-2)*(one-c.passAlone(c.size/2, 0)+c.Overhead)
}

// passAlone is a message while all other ranks wait: where ranks share processors, those that wait need none of their time.
func (c *costing) passAlone(distance int, bytes float64) float64 {
	t := c.pass(distance, bytes)
	if c.inside(distance) {
		t -= (c.shares - 1) * c.alone.Host.OneWay.At(int(bytes))
	}
	return t
}

// readByAll is rootOfAll where ranks share processors and can read each other's memory: each of the others reads its block
// out of the root's, on all processors at once.
func (c *costing) readByAll() float64 {
	if c.shares == 1 || c.nodes > 1 || len(c.Read) == 0 {
		return math.Inf(1)
	}
	turns := 1.0
	if c.block >= announcedBytes {
		turns += announcing
	}
	return turns*c.Switch + float64(c.size-1)*c.Read.At(int(c.block))*c.shares/float64(c.size)
}

func (c *costing) treeGather() float64 { return c.GatheredOwn(int(c.block)) + c.scatterDown() }

func (c *costing) treeScatter() float64 { return c.ScatteredOwn(int(c.block)) + c.scatterDown() }

// ofOwn prices an allgather of blocks that the program has passed in: each rank also copies its own block to its place, and
// what it sends first was not just written (Settled).
func ofOwn(price func(*costing) float64) func(*costing) float64 {
	return func(c *costing) float64 {
		t := c.Copy.At(int(c.block)) + price(c)
		if c.nodes == 1 {
			t += c.settledSwap(c.block) - c.hostSwap(c.block)
		}
		return t
	}
}

func (c *costing) bruckAllgather() float64 {
	return over(c.size, func(d int) float64 { return c.swap(d, c.cut(d)) }) + c.Copy.At(c.n)
}

func (c *costing) cyclicAllgather() float64 {
	// Some rank's run wraps in every step but the first.
	return over(c.size, func(d int) float64 { return c.swap(d, c.cut(d)) }) + float64(max(0, c.rounds()-1))*c.Overhead
}

func (c *costing) doublingAllgather() float64 {
	return over(c.size, func(d int) float64 { return c.swap(d, c.cut(d)) })
}

func (c *costing) ringAllgather() float64 { return float64(c.size-1) * c.next(c.share()) }

func (c *costing) nodeAllgather() float64 {
	perNode := c.block * float64(c.local)
	return float64(rounds2(c.local))*c.Host.OneWay.At(int(perNode/2)) +
		float64(c.nodes-1)*c.net(1, perNode) + c.placing() + c.within(c.all())
}

// placing is a copy of all blocks, one by one, where the blocks of a node do not lie together.
func (c *costing) placing() float64 {
	if c.near {
		return 0
	}
	return c.packing() / 2
}

// lanesAllgather: blocks are collected in the order of lanes. Where ranks are dealt to the nodes in turn that is the order
// of ranks; else every block is copied to its place.
func (c *costing) lanesAllgather() float64 {
	swaps := func(swap func(float64) float64) func(int, float64) float64 {
		return func(messages int, b float64) float64 { return c.several(messages, b, swap) }
	}
	t := circulant(c.nodes, halvingSkips(c.nodes), c.all()/float64(c.local), swaps(c.laneSwap)) + c.inNodes(c.all(), swaps(c.hostSwap))
	if c.dealt {
		return t
	}
	return t + c.packing()/2
}

func (c *costing) bruckAlltoall() float64 {
	half := c.all() / 2
	return over(c.size, func(d int) float64 { return c.swap(d, half) + 2*c.Copy.At(int(half)) }) + 2*c.Copy.At(c.n) +
		float64(c.size)*c.Copy.Alpha()
}

func (c *costing) linearAlltoall() float64 {
	windows := float64((c.size + laneWindow - 2) / laneWindow)
	return windows*c.swap(c.size/2, 0) + c.Copy.At(int(c.block)) + c.partners(c.block, func(bytes float64, one func(float64) float64) float64 {
		return one(bytes) - one(0) + c.Overhead
	})
}

func (c *costing) pairwiseAlltoall() float64 {
	return c.Copy.At(int(c.block)) + c.partners(c.block, func(bytes float64, one func(float64) float64) float64 { return one(bytes) })
}

// partners sums the price of exchanging data that the program has passed in with all other ranks: with those of the own
// node, and with those of other nodes, whichever these are.
func (c *costing) partners(bytes float64, price func(bytes float64, one func(float64) float64) float64) float64 {
	return float64(c.local-1)*price(bytes, c.settledSwap) + float64(c.size-c.local)*price(bytes, c.laneSwap)
}

// hostSwap and laneSwap are exchanges that all ranks of a node do at once, inside it and beyond.
func (c *costing) hostSwap(bytes float64) float64 { return c.Host.Exchange.At(int(bytes)) }
func (c *costing) laneSwap(bytes float64) float64 { return c.net(c.local, bytes) }

// settledSwap is hostSwap of data that were not just written.
func (c *costing) settledSwap(bytes float64) float64 {
	return c.Settled.Or(c.Host.Exchange).At(int(bytes))
}

// packing is two copies of all blocks, each on its own.
func (c *costing) packing() float64 {
	return 2 * (c.Copy.At(c.n) + float64(c.size)*c.Copy.Alpha())
}

func (c *costing) lanesAlltoall() float64 {
	spread := func(partners int, bytes float64, one func(float64) float64) float64 {
		windows := float64((partners + laneWindow - 1) / laneWindow)
		return windows*one(0) + float64(partners)*(one(bytes)-one(0)+c.Overhead)
	}
	return c.packing() + spread(c.local-1, c.all()/float64(c.local), c.hostSwap) + spread(c.nodes-1, c.block*float64(c.local), c.laneSwap)
}
