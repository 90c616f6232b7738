package plan

import "slices"

// Planner makes the plans of one algorithm.
type Planner struct {
	Kind   Kind
	Name   string
	Source string // where the algorithm is described

	build func(*Problem) *Plan
	fits  func(*Problem) string
	cost  func(*costing) float64
}

// Build makes the plan of rank p.Rank, in time proportional to its length.
// Why(p) must be "".
func (a Planner) Build(p *Problem) *Plan { return a.build(p) }

// Why returns the reason for which the planner cannot be used for p, "" if it can.
// All ranks get the same answer.
func (a Planner) Why(p *Problem) string {
	if a.fits == nil {
		return ""
	}
	return a.fits(p)
}

// Predict is the time in seconds that the collective should take with this
// planner on links and processors as m describes them.
func (a Planner) Predict(p *Problem, m *Model) float64 { return a.cost(newCosting(p, m)) }

const (
	thakur      = "Thakur, Rabenseifner, Gropp 2005"
	rabenseif   = "Rabenseifner 2004"
	traeff      = "Träff 2024, arXiv:2410.14234"
	bruck       = "Bruck et al. 1997"
	barnett     = "Barnett et al. 1993"
	patarasuk   = "Patarasuk, Yuan 2009"
	hillis      = "Hillis, Steele 1986"
	sanders     = "Sanders, Träff 2006"
	hensgen     = "Hensgen, Finkel, Manber 1988"
	multilane   = "Träff, Hunold 2020"
	sliced      = "Träff 2024; Ruefenacht, Bull, Booth 2017; Wilkins et al. 2023"
	karonis     = "Karonis et al. 2000"
	elementary  = "elementary"
	smallChain  = 16 << 10
	mediumChain = 64 << 10
	largeChain  = 256 << 10
	longChain   = 2 << 20
)

// Planners lists the planners of a collective, simple ones first.
func Planners(k Kind) []Planner {
	var of []Planner
	for _, a := range catalog() {
		if a.Kind == k {
			of = append(of, a)
		}
	}
	return of
}

// Named finds a planner; ok is false if there is none.
func Named(k Kind, name string) (a Planner, ok bool) {
	of := Planners(k)
	i := slices.IndexFunc(of, func(a Planner) bool { return a.Name == name })
	if i < 0 {
		return Planner{}, false
	}
	return of[i], true
}

func catalog() []Planner {
	return slices.Concat(movers(), reducers(), []Planner{
		{Barrier, "dissemination", hensgen, dissemination, nil, (*costing).dissemination},
		{Barrier, "doubling", thakur, doublingBarrier, nil, (*costing).doublingBarrier},
		{Barrier, "node+dissemination", karonis, nodeBarrier, severalNodes, (*costing).nodeBarrier},
	})
}

func movers() []Planner {
	return []Planner{
		{Bcast, "linear", elementary, bcastLinear, atMost(8), (*costing).linearBcast},
		{Bcast, "binomial", thakur, bcastBinomial, nil, (*costing).treeBcast},
		{Bcast, chainName(smallChain), barnett, bcastChain(smallChain), nil, chainCost(smallChain)},
		{Bcast, chainName(mediumChain), barnett, bcastChain(mediumChain), nil, chainCost(mediumChain)},
		{Bcast, chainName(largeChain), barnett, bcastChain(largeChain), nil, chainCost(largeChain)},
		{Bcast, chainName(longChain), barnett, bcastChain(longChain), nil, chainCost(longChain)},
		{Bcast, "scatter+ring", thakur, bcastScatterRing, nil, (*costing).scatterRing},
		{Bcast, "scatter+bruck", thakur, bcastScatterBruck, nil, (*costing).scatterBruck},
		{Bcast, "node+binomial", karonis, bcastNode, severalNodes, (*costing).nodeBcast},
		{Bcast, "node+scatter", karonis, bcastNodeScatter, severalNodes, (*costing).nodeScatterBcast},

		{Gather, "linear", elementary, gatherLinear, nil, (*costing).linearGather},
		{Gather, "binomial", thakur, gatherBinomial, nil, (*costing).treeGather},
		{Scatter, "linear", elementary, scatterLinear, nil, (*costing).linearScatter},
		{Scatter, "binomial", thakur, scatterBinomial, nil, (*costing).treeScatter},

		{Allgather, "bruck", bruck, allgatherBruck, nil, (*costing).bruckAllgather},
		{Allgather, "cyclic", bruck, allgatherCyclic, nil, ofOwn((*costing).cyclicAllgather)},
		{Allgather, "doubling", thakur, allgatherDoubling, powerOfTwo, ofOwn((*costing).doublingAllgather)},
		{Allgather, "ring", thakur, allgatherRing, nil, ofOwn((*costing).ringAllgather)},
		{Allgather, "node+ring", karonis, allgatherNode, severalNodes, ofOwn((*costing).nodeAllgather)},
		{Allgather, "node+lanes", multilane, allgatherLanes, severalNodes, ofOwn((*costing).lanesAllgather)},

		{Alltoall, "bruck", bruck, alltoallBruck, uniform, (*costing).bruckAlltoall},
		{Alltoall, "linear", elementary, alltoallLinear, nil, (*costing).linearAlltoall},
		{Alltoall, "pairwise", thakur, alltoallPairwise, nil, (*costing).pairwiseAlltoall},
		{Alltoall, "node+lanes", multilane, alltoallLanes, both(uniform, severalNodes), (*costing).lanesAlltoall},
	}
}

func reducers() []Planner {
	return []Planner{
		{Reduce, "binomial", thakur, reduceBinomial, nil, (*costing).treeReduce},
		{Reduce, chainName(smallChain), barnett, reduceChain(smallChain), nil, foldingChainCost(smallChain)},
		{Reduce, chainName(largeChain), barnett, reduceChain(largeChain), nil, foldingChainCost(largeChain)},
		{Reduce, chainName(longChain), barnett, reduceChain(longChain), nil, foldingChainCost(longChain)},
		{Reduce, "rabenseifner", rabenseif, reduceRabenseifner, commutes, (*costing).rabenseifnerReduce},
		{Reduce, "circulant", traeff, reduceCirculant, commutes, (*costing).circulantReduce},
		{Reduce, "node+binomial", karonis, reduceNode, orderedNodes, (*costing).nodeReduce},

		{Allreduce, "doubling", thakur, allreduceDoubling, nil, (*costing).doublingAllreduce},
		{Allreduce, "reduce+bcast", elementary, allreduceViaReduce, nil, (*costing).treeAllreduce},
		{Allreduce, "rabenseifner", rabenseif, allreduceRabenseifner, nil, (*costing).rabenseifnerAllreduce},
		{Allreduce, "circulant", traeff, allreduceCirculant, commutes, (*costing).circulantAllreduce},
		{Allreduce, "ring", patarasuk, allreduceRing, commutes, (*costing).ringAllreduce},
		{Allreduce, "node+doubling", karonis, allreduceNode, orderedNodes, (*costing).nodeAllreduce},
		{Allreduce, slicedName(1), sliced, allreduceSliced, both(commutes, severalNodes), slicedCost(1)},
		{Allreduce, slicedName(4), sliced, allreducePipelined(4), both(commutes, severalNodes), slicedCost(4)},
		{Allreduce, slicedName(10), sliced, allreducePipelined(10), both(commutes, severalNodes), slicedCost(10)},
		{Allreduce, slicedName(24), sliced, allreducePipelined(24), both(commutes, severalNodes), slicedCost(24)},

		{ReduceScatter, "circulant", traeff, reduceScatterCirculant, commutes, (*costing).circulantReduceScatter},
		{ReduceScatter, "halving", thakur, reduceScatterHalving, both(commutes, powerOfTwo), (*costing).circulantReduceScatter},
		{ReduceScatter, "ring", patarasuk, reduceScatterRing, commutes, (*costing).ringReduceScatter},
		{ReduceScatter, "pairwise", thakur, reduceScatterPairwise, nil, (*costing).pairwiseReduceScatter},
		{ReduceScatter, "reduce+scatter", thakur, reduceScatterViaReduce, nil, (*costing).treeReduceScatter},
		{ReduceScatter, "node+lanes", multilane, reduceScatterLanes, both(commutes, severalNodes), (*costing).lanesReduceScatter},

		{Scan, "doubling", hillis, scanDoubling, nil, (*costing).doublingScan},
		{Scan, chainName(mediumChain), barnett, scanChain(mediumChain), nil, foldingChainCost(mediumChain)},
		{Scan, chainName(longChain), barnett, scanChain(longChain), nil, foldingChainCost(longChain)},
		{Scan, "node+doubling", sanders, scanNode, consecutiveNodes, (*costing).nodeScan},
		{Exscan, "doubling", hillis, exscanDoubling, nil, (*costing).doublingScan},
		{Exscan, chainName(mediumChain), barnett, exscanChain(mediumChain), nil, foldingChainCost(mediumChain)},
		{Exscan, chainName(longChain), barnett, exscanChain(longChain), nil, foldingChainCost(longChain)},
		{Exscan, "node+doubling", sanders, exscanNode, consecutiveNodes, (*costing).nodeScan},
	}
}

func both(f, g func(*Problem) string) func(*Problem) string {
	return func(p *Problem) string {
		if why := f(p); why != "" {
			return why
		}
		return g(p)
	}
}

func atMost(ranks int) func(*Problem) string {
	return func(p *Problem) string {
		if p.Size > ranks {
			return "for a few ranks only"
		}
		return ""
	}
}

func powerOfTwo(p *Problem) string {
	if !isPow2(p.Size) {
		return "the number of ranks is not a power of two"
	}
	return ""
}

func commutes(p *Problem) string {
	if p.Ordered {
		return "the operator does not commute"
	}
	return ""
}

func uniform(p *Problem) string {
	if p.SendCounts != nil {
		return "blocks differ in length"
	}
	return ""
}

func severalNodes(p *Problem) string {
	switch {
	case p.Nodes == nil || len(p.Nodes.Members) == 1:
		return "all ranks are on one host"
	case !p.Nodes.spread():
		return "every rank has a host of its own"
	}
	return ""
}

func consecutiveNodes(p *Problem) string {
	if why := severalNodes(p); why != "" {
		return why
	}
	if !p.Nodes.Consecutive {
		return "the ranks of a host are not consecutive"
	}
	return ""
}

// orderedNodes: hosts may be reduced one by one.
func orderedNodes(p *Problem) string {
	if p.Ordered {
		return consecutiveNodes(p)
	}
	return severalNodes(p)
}
