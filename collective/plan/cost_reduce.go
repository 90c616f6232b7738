package plan

// Prices of the collectives with an operator; see cost.go.

func (c *costing) treeReduce() float64 {
	return over(c.size, func(d int) float64 { return c.passFold(d, c.all()) })
}

// halved is a reduce-scatter over a power of two: each step half of the last.
func (c *costing) halved(size int) float64 {
	return over(size, func(d int) float64 { return c.swapFold(size/2/d, float64(d)*c.all()/float64(size)) })
}

func (c *costing) rabenseifnerReduce() float64 {
	p2 := below2(c.size)
	return c.halved(p2) + over(p2, func(d int) float64 { return c.pass(d, float64(d)*c.all()/float64(p2)) }) +
		c.odd(func() float64 { return c.passFold(1, c.all()) })
}

func (c *costing) circulantReduceScatter() float64 {
	t := 0.0
	for top := c.size; top > 1; {
		s := (top + 1) / 2
		t += c.swapFold(s, float64(top-s)*c.share())
		top = s
	}
	return t + float64(max(0, c.rounds()-1))*c.Overhead
}

func (c *costing) circulantReduce() float64 {
	return c.circulantReduceScatter() + over(c.size, func(d int) float64 { return c.pass(d, c.cut(d)) })
}

// hostPassFold is a message inside a node whose data are reduced on arrival.
func (c *costing) hostPassFold(bytes float64) float64 {
	return parted(bytes, c.hostPart, func(b float64) float64 { return c.Host.OneWay.At(int(b)) + c.fold(b) })
}

func (c *costing) nodeReduce() float64 {
	return float64(rounds2(c.local))*c.hostPassFold(c.all()) +
		float64(rounds2(c.nodes))*parted(c.all(), c.netPart, func(b float64) float64 { return c.Net.OneWay.At(int(b)) + c.fold(b) })
}

func (c *costing) doublingAllreduce() float64 {
	return over(below2(c.size), func(d int) float64 { return c.swap(d, c.all()) + c.fold(c.all()) }) +
		c.odd(func() float64 { return c.passFold(1, c.all()) + c.pass(1, c.all()) })
}

func (c *costing) treeAllreduce() float64 { return c.treeReduce() + c.treeBcast() }

func (c *costing) rabenseifnerAllreduce() float64 {
	p2 := below2(c.size)
	t := over(p2, func(d int) float64 {
		b := c.all() / float64(2*d)
		return c.swapFold(d, b) + c.swap(d, b)
	})
	return t + c.odd(func() float64 { return c.passFold(1, c.all()) + c.pass(1, c.all()) })
}

func (c *costing) circulantAllreduce() float64 {
	return c.circulantReduceScatter() + c.cyclicAllgather()
}

func (c *costing) ringAllreduce() float64 {
	return float64(c.size-1)*c.nextFold(c.share()) + c.ringAllgather()
}

func (c *costing) nodeAllreduce() float64 {
	extra := 0.0
	if !isPow2(c.nodes) {
		extra = 2 * c.Net.OneWay.At(c.n)
	}
	return float64(rounds2(c.local))*c.hostPassFold(c.all()) + c.within(c.all()) +
		over(below2(c.nodes), func(int) float64 { return c.net(1, c.all()) + c.fold(c.all()) }) + extra
}

// slicedCost prices the sliced allreduce in so many segments. With several, the stages inside the nodes overlap with those
// between them: each round then has messages of four stages, all of which keep the processor busy, and ends when the
// slowest has arrived.
func slicedCost(segments int) func(*costing) float64 {
	weight := rampWeights(segments)
	sum := 0
	for _, w := range weight {
		sum += w
	}
	return func(c *costing) float64 {
		unit := c.all() / float64(sum)
		skips, copies := radixSkips(c.nodes, slicedRadix), 2*c.Copy.At(c.n/c.local)
		if segments > 1 {
			skips, copies = pipelineSkips(c.nodes, stepsAny(c.local)), 0
		}
		inside := func(w float64) float64 { return c.slicedInside(w * unit) }
		between := func(w float64) float64 { return c.slicedBetween(w*unit, skips) }
		t := inside(1) + between(1) + copies // nothing hides the ends
		for i, w := range weight {
			if i > 0 {
				t += max(inside(float64(w)), between(float64(w)))
			}
		}
		if segments > 1 {
			rounds := (segments + 3) * max(len(skips), stepsAny(c.local))
			t += float64(rounds) * (c.Net.OneWay.Alpha() + 4*2*c.Overhead)
		}
		return t
	}
}

// slicedInside is the reduce-scatter and allgather of n bytes inside the nodes.
func (c *costing) slicedInside(n float64) float64 {
	return c.inNodes(n, func(messages int, b float64) float64 {
		return c.several(messages, b, c.hostSwapFold) + c.several(messages, b, c.hostSwap)
	})
}

// slicedBetween is the allreduce of n bytes in slices among the nodes.
func (c *costing) slicedBetween(n float64, skips []int) float64 {
	return circulant(c.nodes, skips, n/float64(c.local), func(messages int, b float64) float64 {
		return c.several(messages, b, c.laneSwapFold) + c.several(messages, b, c.laneSwap)
	})
}

// several is a step in which every rank sends some messages of so many bytes.
func (c *costing) several(messages int, bytes float64, one func(float64) float64) float64 {
	return one(bytes) + float64(messages-1)*(one(bytes)-one(0)+c.Overhead)
}

// hostSwapFold and laneSwapFold are exchanges of all ranks of a node whose data are reduced on arrival.
func (c *costing) hostSwapFold(bytes float64) float64 {
	return parted(bytes, c.hostPart, func(b float64) float64 { return c.hostSwap(b) + c.fold(b) })
}

func (c *costing) laneSwapFold(bytes float64) float64 {
	return parted(bytes, c.netPart, func(b float64) float64 { return c.laneSwap(b) + c.fold(b) })
}

// circulant sums the steps of a circulant reduce-scatter of n bytes over size
// ranks: so many messages of so many bytes each.
func circulant(size int, skips []int, n float64, step func(messages int, bytes float64) float64) float64 {
	sum, t := 0.0, size
	for _, s := range skips {
		messages := (t+s-1)/s - 1
		sum += step(messages, float64(t-s)/float64(size*messages)*n)
		t = s
	}
	return sum
}

// inNodes is circulant for reduceScatterAny inside the nodes.
func (c *costing) inNodes(n float64, step func(messages int, bytes float64) float64) float64 {
	fs := factors(c.local)
	if fs == nil {
		return circulant(c.local, halvingSkips(c.local), n, step)
	}
	sum := 0.0
	for _, f := range fs {
		n /= float64(f)
		sum += step(f-1, n)
	}
	return sum
}

func (c *costing) ringReduceScatter() float64 {
	return float64(c.size-1) * c.nextFold(c.share())
}

func (c *costing) pairwiseReduceScatter() float64 {
	return float64(c.size-1) * c.swapFold(c.size/2, c.share())
}

func (c *costing) treeReduceScatter() float64 { return c.treeReduce() + c.scatterDown() }

func (c *costing) doublingScan() float64 {
	return over(c.size, func(d int) float64 { return c.swap(d, c.all()) + c.fold(c.all()) }) + c.Copy.At(c.n)
}

func (c *costing) nodeScan() float64 {
	step := func(swap func(float64) float64) func(int) float64 {
		return func(int) float64 { return swap(c.all()) + c.fold(c.all()) }
	}
	lastSwap := func(b float64) float64 { return c.net(1, b) }
	return c.Copy.At(c.n) + over(c.local, step(c.hostSwap)) + over(c.nodes, step(lastSwap)) +
		c.within(c.all()) + c.fold(c.all())
}

func (c *costing) lanesReduceScatter() float64 {
	step := func(swapFold func(float64) float64) func(int, float64) float64 {
		return func(messages int, b float64) float64 { return c.several(messages, b, swapFold) }
	}
	return c.packing()/2 + c.inNodes(c.all(), step(c.hostSwapFold)) +
		circulant(c.nodes, halvingSkips(c.nodes), c.all()/float64(c.local), step(c.laneSwapFold))
}
