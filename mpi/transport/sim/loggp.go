package sim

import (
	"fmt"
	"math"
	"time"
)

// Link is one class of links in the LogGP model: Alexandrov, Ionescu, Schauser,
// Scheiman: LogGP: Incorporating long messages into the LogP model, SPAA 1995.
type Link struct {
	Latency   time.Duration // L: from the first byte's leaving to its arrival
	Overhead  time.Duration // o: processor time of either side for one message
	Gap       time.Duration // g: shortest time between two messages of one node's adapter
	Bandwidth float64       // 1/G, bytes per second
}

// Transfer is n·G, rounded up to a nanosecond.
func (l *Link) Transfer(nBytes int) time.Duration {
	if nBytes <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(float64(nBytes) * 1e9 / l.Bandwidth))
}

// hold is for how long a message occupies an adapter, in nanoseconds: max(g, n·G).
func (l *Link) hold(nBytes int) int64 { return int64(max(l.Gap, l.Transfer(nBytes))) }

// Time is what one message of n bytes takes between two idle ranks,
// o + n·G + L + o: the α + nβ of simpler models.
func (l *Link) Time(nBytes int) time.Duration {
	return 2*l.Overhead + l.Latency + l.Transfer(nBytes)
}

// Network is what messages cost in virtual time. Ranks fill the nodes one
// after the other, or are dealt to them in turn.
//
// Within a node a message costs the sender o and the receiver o, and the
// copying, n·G: by the receiver, and for eager messages (Send) by the sender
// also, since they are copied twice. Memory that is pulled is copied by the reader, one pull after
// the other, in chunks between which it looks at what else has arrived. Memory
// bandwidth is not shared.
//
// Between nodes each node has one adapter that its ranks share, full duplex. It sends messages one after the other, each
// holding it for max(g, n·G); the first byte arrives L later; and the adapter at the other end takes them in one after the
// other, too. Adapters serve their queue pairs in turn, so a message that fits one packet waits only for others that do,
// unless a longer message between the same two ranks is before it. So a node that sends to many is limited at the source, and
// one that many send to at the destination. Switches are assumed not to block. A payload lent by SendFrom is the sender's
// again one L after it has arrived, as with a reliable connection of InfiniBand, whose completions wait for the
// acknowledgement. A pull is a remote read: o and L for the request, which the other side's processor knows nothing of, then
// the payload as above.
type Network struct {
	Name         string
	RanksPerNode int
	// Cyclic is how many nodes ranks are dealt to in turn, whatever RanksPerNode says; 0: they fill one node after the other.
	Cyclic int
	Node   Link // between ranks of a node
	Wire   Link // between nodes

	// Where message layers on this network change protocol, reported in Caps.
	EagerBytes, RendezvousBytes int
}

// FDR is InfiniBand FDR with 24 ranks a node, two 12-core processors as in the
// Haswell generation it was sold with.
//
// 4 lanes of 14.0625 Gb/s with 64b/66b coding carry 6.8 GB/s (InfiniBand
// Architecture Specification, volume 2); PCI Express 3.0 x8 and headers leave about 6.2 GB/s to
// MPI. A small message takes 1.2 µs one way, sender and receiver included, an assumption for MPI
// libraries of that generation. ConnectX-3 adapters do 90 million messages a second by Dell's account ("Need for
// Speed: Comparing FDR and EDR InfiniBand", 2016); the gap here is that of a third of it, since libraries add theirs.
func FDR() *Network {
	return &Network{
		Name: "fdr", RanksPerNode: 24,
		Node:       sharedMemory(4.5e9),
		Wire:       Link{Latency: 700 * time.Nanosecond, Overhead: 250 * time.Nanosecond, Gap: 29 * time.Nanosecond, Bandwidth: 6.2e9},
		EagerBytes: 16 << 10, RendezvousBytes: 16 << 10,
	}
}

// HDR100 is InfiniBand HDR100 with 64 ranks a node, two 32-core processors.
//
// The port carries 100 Gb/s; osu_bibw on ConnectX-6 shows 24.6 GB/s both ways
// together (openucx/ucx issue 7245), so 12.3 GB/s each. osu_latency on 100 Gb/s
// InfiniBand shows 1.24 to 1.27 µs up to 16 bytes (HPC documentation of Shanghai
// Jiao Tong University). NVIDIA states 215 million messages a second for ConnectX-6.
func HDR100() *Network {
	return &Network{
		Name: "hdr100", RanksPerNode: 64,
		Node:       sharedMemory(9e9),
		Wire:       Link{Latency: 750 * time.Nanosecond, Overhead: 250 * time.Nanosecond, Gap: 5 * time.Nanosecond, Bandwidth: 12.3e9},
		EagerBytes: 16 << 10, RendezvousBytes: 16 << 10,
	}
}

// sharedMemory is a link through shared memory: half a microsecond one way
// (Open MPI 4.1 here: 0.35 to 0.51 µs for 8 bytes) and one core's copying.
func sharedMemory(bandwidth float64) Link {
	return Link{Latency: 200 * time.Nanosecond, Overhead: 100 * time.Nanosecond, Bandwidth: bandwidth}
}

// Networks are the presets.
func Networks() []*Network { return []*Network{FDR(), HDR100()} }

// NodeOf is the node of a rank.
func (n *Network) NodeOf(rank int) int {
	if n.Cyclic > 0 {
		return rank % n.Cyclic
	}
	return rank / n.RanksPerNode
}

// NodesOf is the number of nodes of so many ranks.
func (n *Network) NodesOf(ranks int) int {
	if n.Cyclic > 0 {
		return min(ranks, n.Cyclic)
	}
	return n.NodeOf(ranks-1) + 1
}

// Between is the link between two ranks.
func (n *Network) Between(a, b int) *Link {
	if n.NodeOf(a) == n.NodeOf(b) {
		return &n.Node
	}
	return &n.Wire
}

func (n *Network) check() error {
	if n.RanksPerNode < 1 {
		return fmt.Errorf("%w: network %q: RanksPerNode is %d, at least 1 is needed", ErrConfig, n.Name, n.RanksPerNode)
	}
	if n.Cyclic < 0 {
		return fmt.Errorf("%w: network %q: Cyclic is %d, a number of nodes or 0 is needed", ErrConfig, n.Name, n.Cyclic)
	}
	if n.EagerBytes < 0 || n.RendezvousBytes < 0 {
		return fmt.Errorf("%w: network %q: EagerBytes %d or RendezvousBytes %d is negative", ErrConfig, n.Name, n.EagerBytes, n.RendezvousBytes)
	}
	for _, l := range []Link{n.Node, n.Wire} {
		if !(l.Bandwidth > 0) || l.Latency < 0 || l.Overhead < 0 || l.Gap < 0 {
			return fmt.Errorf("%w: network %q: link %+v needs a bandwidth and no negative times", ErrConfig, n.Name, l)
		}
	}
	return nil
}
