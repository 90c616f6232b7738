package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// ScaleOptions describe a simulation: the program's own engine, plans and
// executor over a simulated network in virtual time. Messages carry sizes, not bytes.
type ScaleOptions struct {
	Kind    plan.Kind
	Network *sim.Network
	Plan    string // "": what the cost model picks
	// ReduceRate is 1/γ in bytes per second, 0: 10 GB/s, a core's sum of
	// float32 out of its second-level cache.
	ReduceRate float64
}

// ScalePoint is one simulated collective.
type ScalePoint struct {
	Ranks     int           `json:"ranks"`
	Asked     int           `json:"asked_bytes"` // the size that was asked for
	Bytes     int           `json:"bytes"`       // of all elements: where ranks have blocks, as many for each
	Plan      string        `json:"plan"`
	Simulated time.Duration `json:"simulated_ns"`
	Bound     time.Duration `json:"bound_ns"`
	// Shared is the least time on this network, where the ranks of a node share its link and
	// copy for themselves; 0 where none is known. See sharedBound.
	Shared   time.Duration `json:"shared_bound_ns,omitempty"`
	Messages uint64        `json:"messages"`
	Wall     time.Duration `json:"wall_ns"`
}

// Ratio is the simulated time against the lower bound of the model.
func (p ScalePoint) Ratio() float64 { return float64(p.Simulated) / float64(p.Bound) }

const defaultReduceRate = 10e9

// elements is how many there are of n bytes, of all ranks together where those have blocks: each has one at least.
func (o ScaleOptions) elements(ranks, nBytes int) int {
	elements := max(1, nBytes/elementBytes)
	if o.Kind.HasBlocks() {
		elements = ranks * max(1, elements/ranks)
	}
	return elements
}

// phantomBytes is the length of the memory that stands in for the scratch memory of any plan for so many elements. An
// alltoall in lanes needs the most, on nodes with fewer ranks than others: all blocks packed and unpacked, and twice what
// its node has for the ranks that its lanes lead to. A lane leads to N ranks for N nodes, and a rank of a node with r ranks
// has up to ⌈L/r⌉ lanes where the fullest node has L ranks: r·⌈L/r⌉·N blocks, which are at most twice as many as there are
// ranks if all nodes but one are alike.
func phantomBytes(elements int) int { return 6*elements*elementBytes + 1<<20 }

func (o ScaleOptions) host(rank int) string { return fmt.Sprintf("n%d", o.Network.NodeOf(rank)) }

// Check finds what Scale cannot simulate, in no time. The error is ErrUsage, but where this machine has no memory for it.
func (o ScaleOptions) Check(ranks, nBytes int) error {
	if ranks < 1 || nBytes < 0 {
		return usage("%v of %d bytes over %d ranks: want at least 1 rank and 0 bytes", o.Kind, nBytes, ranks)
	}
	if err := wholeElements(nBytes); err != nil {
		return err
	}
	elements := o.elements(ranks, nBytes)
	if err := affords(elements*elementBytes, elements*elementBytes, phantomBytes(elements)); err != nil {
		return err
	}
	if o.Plan == "" {
		return nil
	}
	planner, ok := plan.Named(o.Kind, o.Plan)
	if !ok {
		var names []string
		for _, a := range plan.Planners(o.Kind) {
			names = append(names, a.Name)
		}
		return usage("no plan by messages for %v is called %q; these are: %s", o.Kind, o.Plan, strings.Join(names, ", "))
	}
	p := &plan.Problem{Kind: o.Kind, Size: ranks, Count: elements, ElemBytes: elementBytes, Nodes: plan.NewNodes(ranks, o.host)}
	if o.Kind.HasBlocks() {
		p.Count /= ranks
	}
	if why := planner.Why(p); why != "" {
		return usage("plan %s does not fit %v of %d bytes over %d ranks: %s", o.Plan, o.Kind, nBytes, ranks, why)
	}
	return nil
}

// Scale simulates one collective of n bytes (float32) on so many ranks. Where ranks have blocks, n is all of them together.
// Each rank has an element at least: the point says how many bytes they are.
func Scale(ctx context.Context, o ScaleOptions, ranks, nBytes int) (ScalePoint, error) {
	if err := o.Check(ranks, nBytes); err != nil {
		return ScalePoint{}, err
	}
	if o.ReduceRate <= 0 {
		o.ReduceRate = defaultReduceRate
	}
	asked := SizesOf(o.Kind, []int{nBytes})[0]
	elements := o.elements(ranks, asked)
	nBytes = elements * elementBytes
	if o.Kind == plan.Barrier { // its element is what the simulation needs, and not what it moves
		nBytes = 0
	}
	// All ranks share the memory that stands in for vectors: nobody touches it.
	vector, result, phantom := make([]float32, elements), make([]float32, elements), make([]byte, phantomBytes(elements))
	model := networkModel(o.Network, o.ReduceRate)
	start := time.Now()
	f := sim.New(sim.Config{Ranks: ranks, Network: o.Network, SizesOnly: true, Seed: 1})
	compute := make([]func(time.Duration), ranks)
	worlds, err := mpi.Local(ranks, mpi.LocalOptions{Fabric: f, Still: true, Pull: true, Host: o.host,
		Opened: func(rank int, p *sim.Provider) { compute[rank] = p.Compute }})
	if err != nil {
		return ScalePoint{}, err
	}
	nodes := plan.NewNodes(ranks, o.host)
	failed := make([]error, ranks)
	var chosen string
	err = f.Run(ctx, func(rank int) {
		c := worlds[rank].Comm()
		cfg := collective.Config{Model: model, Phantom: phantom, Nodes: nodes, StallAfter: -1, Charge: compute[rank]}
		if o.Plan != "" {
			cfg.Force = map[plan.Kind]string{o.Kind: o.Plan}
		}
		if err := collective.Configure(c, cfg); err != nil {
			failed[rank] = err
			return
		}
		if rank == 0 {
			chosen = collective.Explain(o.Kind, nBytes, c).Plan
		}
		failed[rank] = scaleCall(ctx, c, o.Kind, vector, result)
	})
	for rank, e := range failed {
		if e != nil { // which is why the others wait, if they do
			err = fmt.Errorf("rank %d: %w", rank, e)
			break
		}
	}
	if err != nil {
		return ScalePoint{}, err
	}
	p := ScalePoint{Ranks: ranks, Asked: asked, Bytes: nBytes, Plan: chosen, Simulated: f.Elapsed(), Wall: time.Since(start), Messages: f.Stats().Messages}
	alpha, beta := o.Network.Wire.Time(0).Seconds(), 1/o.Network.Wire.Bandwidth
	if o.Network.NodesOf(ranks) == 1 {
		alpha, beta = o.Network.Node.Time(0).Seconds(), 1/o.Network.Node.Bandwidth
	}
	bound := plan.LowerBound(o.Kind, ranks, nBytes, alpha, beta, 1/o.ReduceRate)
	p.Bound = time.Duration(math.Ceil(bound * 1e9))
	if o.Kind == plan.Allreduce {
		p.Shared = sharedBound(o.Network, ranks, nBytes, o.ReduceRate)
	}
	return p, nil
}

// sharedBound is the least time in which messages and processors can do an
// allreduce of n bytes on the network, by two things that a link for each rank hides.
// A node's link carries 2(N-1)/N·n each way for N nodes, whoever of its ranks drives it. And of the L ranks of a
// node all together must copy (L-1)·n to reduce it and each the (L-1)/L·n of the
// result that it has not reduced itself: 2(L-1)/L·n by each rank's processor, with (L-1)/L·n of arithmetic.
func sharedBound(n *sim.Network, ranks, nBytes int, reduceRate float64) time.Duration {
	others := func(size int) float64 { return float64(size-1) / float64(size) * float64(nBytes) }
	local := min(ranks, n.RanksPerNode)
	if n.Cyclic > 0 { // dealt out evenly
		local = (ranks + n.Cyclic - 1) / n.Cyclic
	}
	nodes := n.NodesOf(ranks)
	link := 2 * others(nodes) / n.Wire.Bandwidth
	processor := others(local)*(2/n.Node.Bandwidth+1/reduceRate) + others(nodes)/float64(local)/reduceRate
	return time.Duration(math.Ceil(max(link, processor) * 1e9))
}

// scaleCall is one call of the collective, by the public interface. The vector
// is all blocks together where ranks have blocks.
func scaleCall(ctx context.Context, c *mpi.Comm, k plan.Kind, v, result []float32) error {
	mine := len(v) / c.Size()
	switch k {
	case plan.Allreduce:
		return collective.Allreduce(ctx, c, v, v, collective.Sum)
	case plan.Bcast:
		return collective.Bcast(ctx, c, v, 0)
	case plan.Reduce:
		return collective.Reduce(ctx, c, v, v, collective.Sum, 0)
	case plan.Barrier:
		return collective.Barrier(ctx, c)
	case plan.Scan:
		return collective.Scan(ctx, c, v, v, collective.Sum)
	case plan.Exscan:
		return collective.Exscan(ctx, c, v, v, collective.Sum)
	case plan.Gather:
		return collective.Gather(ctx, c, v[:mine], result, 0)
	case plan.Scatter:
		return collective.Scatter(ctx, c, v, result[:mine], 0)
	case plan.Allgather:
		return collective.Allgather(ctx, c, v[:mine], result)
	case plan.Alltoall:
		return collective.Alltoall(ctx, c, v, result)
	case plan.ReduceScatter:
		return collective.ReduceScatterBlock(ctx, c, v, result[:mine], collective.Sum)
	}
	return usage("scale: %v cannot be simulated; %v can", k, plan.Kinds())
}

// networkModel prices plans by the links of a simulated network and by what
// the protocol makes of them: below the rendezvous limit a message goes at
// once, and inside a node is copied twice; above it is announced, pulled and acknowledged.
func networkModel(n *sim.Network, reduceRate float64) *plan.Model {
	m := &plan.Model{
		Name: n.Name, Host: protocolLink(n.Node, n.RendezvousBytes, 2, 1), Net: protocolLink(n.Wire, n.RendezvousBytes, 1, 2),
		Combine: plan.Linear(0, 1/reduceRate), Copy: plan.Linear(0, 1/(2*reduceRate)),
		Overhead: n.Wire.Overhead.Seconds(),
	}
	m.Net.Gap = 1 / n.Wire.Bandwidth
	return m
}

// protocolLink prices messages over a link: copies is how often the bytes of an eager
// one are moved, hops how many latencies a pull takes.
func protocolLink(l sim.Link, limit, copies, hops int) plan.Link {
	control := l.Time(0).Seconds()
	read := l.Overhead.Seconds() + float64(hops)*l.Latency.Seconds()
	curve := func(long float64) plan.Curve {
		const far = 1 << 30
		return plan.Curve{
			{Bytes: 0, Seconds: control},
			{Bytes: limit - 1, Seconds: control + float64(copies*(limit-1))/l.Bandwidth},
			{Bytes: limit, Seconds: long + float64(limit)/l.Bandwidth},
			{Bytes: far, Seconds: long + far/l.Bandwidth},
		}
	}
	// OneWay lasts until the receiver has read the message, Exchange until the sender knows that it has.
	return plan.Link{OneWay: curve(control + read), Exchange: curve(control + read + control)}
}

// PlotScale draws simulated times and their bounds over the number of ranks, one pair of
// lines for each size that was asked for, as SVG.
func PlotScale(w io.Writer, title string, points []ScalePoint) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = "ranks", "time (µs)"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	var order []int
	simulated, bound := map[int]plotter.XYs{}, map[int]plotter.XYs{}
	for _, x := range points {
		if simulated[x.Asked] == nil {
			order = append(order, x.Asked)
		}
		simulated[x.Asked] = append(simulated[x.Asked], plotter.XY{X: float64(x.Ranks), Y: float64(x.Simulated) / 1e3})
		bound[x.Asked] = append(bound[x.Asked], plotter.XY{X: float64(x.Ranks), Y: float64(x.Bound) / 1e3})
	}
	for i, n := range order {
		line, marks, err := plotter.NewLinePoints(simulated[n])
		if err != nil {
			return err
		}
		low, err := plotter.NewLine(bound[n])
		if err != nil {
			return err
		}
		line.Color, marks.Color, low.Color = lineColor(i), lineColor(i), lineColor(i)
		low.Dashes = []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(line, marks, low)
		p.Legend.Add(fmt.Sprintf("%d B", n), line, marks)
	}
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		if a.Min == a.Max { // the plot would make room by subtraction, and a logarithm has none at 0
			a.Min, a.Max = a.Min/2, a.Max*2
		}
	}
	canvas := vgsvg.New(16*vg.Centimeter, 10*vg.Centimeter)
	p.Draw(draw.New(canvas))
	_, err := canvas.WriteTo(w)
	return err
}
