package plan

import (
	"fmt"
	"math"
	"slices"
)

// Point is a measured time for a number of bytes.
type Point struct {
	Bytes   int     `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// Curve is a time as a function of bytes, linear between its points (in
// ascending order of Bytes) and beyond the last two. An α-β link is a curve of two
// points; measured ones have a point wherever the slope changes.
type Curve []Point

// Linear is the curve α + β·bytes.
func Linear(alpha, beta float64) Curve {
	return Curve{{0, alpha}, {1 << 20, alpha + beta*(1<<20)}}
}

// At is the time for a number of bytes. An empty curve is zero everywhere.
func (c Curve) At(bytes int) float64 {
	switch {
	case len(c) == 0:
		return 0
	case len(c) == 1 || bytes <= c[0].Bytes:
		return c[0].Seconds
	}
	i, _ := slices.BinarySearchFunc(c, bytes, func(p Point, b int) int { return p.Bytes - b })
	i = min(max(i, 1), len(c)-1)
	a, b := c[i-1], c[i]
	slope := (b.Seconds - a.Seconds) / float64(b.Bytes-a.Bytes)
	return max(0, a.Seconds+slope*float64(bytes-a.Bytes))
}

// Or is c, or another if c was not measured.
func (c Curve) Or(other Curve) Curve {
	if len(c) == 0 {
		return other
	}
	return c
}

// Alpha is the time of the shortest message in seconds.
func (c Curve) Alpha() float64 {
	if len(c) == 0 {
		return 0
	}
	return c[0].Seconds
}

// Beta is the time per further byte of long messages in seconds.
func (c Curve) Beta() float64 {
	if len(c) < 2 {
		return 0
	}
	a, b := c[len(c)-2], c[len(c)-1]
	return (b.Seconds - a.Seconds) / float64(b.Bytes-a.Bytes)
}

// Link is a class of connections between ranks.
type Link struct {
	// OneWay is the time of a message between two ranks that do nothing else.
	OneWay Curve `json:"one_way"`
	// Exchange is the time in which every rank of a host sends one message and receives one.
	Exchange Curve `json:"exchange"`
	// Gap is the time per byte by which a message is delayed for each
	// further rank of the host that sends over the same adapter.
	Gap float64 `json:"gap_per_byte,omitempty"`
}

// Model holds the figures that prices are made of. All ranks of a communicator must use the same one.
type Model struct {
	Name string `json:"name"`
	Host Link   `json:"host"`    // between ranks of one host
	Net  Link   `json:"network"` // between hosts
	// Combine is γ: the time to reduce bytes of one operand into another.
	Combine Curve `json:"combine"`
	// Folded is Combine for an operand that a message from a rank of the same host has just brought: part of it may be in
	// the sender's caches. Empty: as Combine says.
	Folded Curve `json:"folded,omitempty"`
	// Merged is the time in which every rank of a host sends one message, receives one and reduces its data on arrival.
	// Empty: as Exchange and Folded say for each of the parts in which the data come.
	Merged Curve `json:"merged,omitempty"`
	// Settled is Host.Exchange of data that their sender has not just written, such as the blocks with which a collective
	// is called: parts of them may be in no cache, or in the receiver's. Empty: as Exchange says.
	Settled Curve `json:"settled,omitempty"`
	// Gathered is the time in which a rank collects a block of another rank of its host and one of its own, Scattered that
	// in which it deals them out. Empty: as OneWay and Copy say.
	Gathered  Curve `json:"gathered,omitempty"`
	Scattered Curve `json:"scattered,omitempty"`
	// Copy is the time to copy bytes from one buffer to another.
	Copy Curve `json:"copy"`
	// Pieces is the time in which every rank of a host gives another so many bytes through memory that
	// they share, and takes as many. Empty: as OneWay and Copy say.
	Pieces Curve `json:"pieces,omitempty"`
	// Given is the time in which one rank of a host gives another so many bytes through shared memory. Empty: as OneWay
	// says.
	Given Curve `json:"given,omitempty"`
	// Read is the time in which every rank of a host reads so many bytes out of another's memory through the kernel, and
	// tells the other that it has. Empty: the ranks cannot read each other's memory.
	Read Curve `json:"read,omitempty"`
	// Mapped is Read for memory that both ranks have mapped. Empty: as Copy says.
	Mapped Curve `json:"mapped,omitempty"`
	// Cross is how long the ranks of one host take to meet in shared memory, in
	// seconds; 0: as long as the shortest message. Where several share a processor, Switch is added to it.
	Cross float64 `json:"cross,omitempty"`
	// NetPartBytes is Problem.NetPartBytes: the best length of messages over the network whose data are reduced on arrival.
	// 0: as within a host.
	NetPartBytes int `json:"network_part_bytes,omitempty"`
	// Overhead is how long a processor is busy with a message besides its bytes.
	Overhead float64 `json:"overhead"`
	// Switch is how long a rank waits for its turn where several share a processor. 0: nothing is added for sharing, either
	// because the other figures were measured with it or because no ranks share.
	Switch float64 `json:"switch,omitempty"`
}

// Clone is a copy that shares nothing with m.
func (m *Model) Clone() *Model {
	d := *m
	for _, c := range d.Curves() {
		*c.Curve = slices.Clone(*c.Curve)
	}
	return &d
}

// NamedCurve is a curve of a model with its name in a file.
type NamedCurve struct {
	Name    string
	Curve   *Curve
	Measure Measure
}

// Measure says whether a model can do without a curve.
type Measure uint8

const (
	Needed   Measure = iota // no model can do without it
	Optional                // may be empty; its comment in Model says what that means
)

// Curves are all curves of m, to be read or set.
func (m *Model) Curves() []NamedCurve {
	return []NamedCurve{
		{"host.one_way", &m.Host.OneWay, Needed}, {"host.exchange", &m.Host.Exchange, Needed},
		{"network.one_way", &m.Net.OneWay, Needed}, {"network.exchange", &m.Net.Exchange, Needed},
		{"combine", &m.Combine, Needed}, {"folded", &m.Folded, Optional}, {"merged", &m.Merged, Optional},
		{"settled", &m.Settled, Optional}, {"gathered", &m.Gathered, Optional}, {"scattered", &m.Scattered, Optional}, {"copy", &m.Copy, Needed}, {"pieces", &m.Pieces, Optional},
		{"given", &m.Given, Optional}, {"read", &m.Read, Optional}, {"mapped", &m.Mapped, Optional},
	}
}

// What the root's copy of its own block costs where that was not measured, in copies of that length. In a gather, where the
// root fetches the others' blocks, they wait meanwhile, and the copy drives what they have to send out of the caches. In a
// scatter the others fetch their blocks beside the copy.
const (
	gatheredOwn  = 1.5
	scatteredOwn = 0.75
)

// GatheredOwn is the time that the root's own block of n bytes adds to a gather of the others' blocks.
func (m *Model) GatheredOwn(n int) float64 { return m.ownBlock(m.Gathered, gatheredOwn, n) }

// ScatteredOwn is the same for a scatter.
func (m *Model) ScatteredOwn(n int) float64 { return m.ownBlock(m.Scattered, scatteredOwn, n) }

func (m *Model) ownBlock(both Curve, copies float64, n int) float64 {
	if len(both) == 0 {
		return copies * m.Copy.At(n)
	}
	return max(0, both.At(n)-m.Host.OneWay.At(n))
}

const (
	// announcedBytes is about the length from which messages are announced first, for which the two ranks need so many more
	// turns (announcing).
	announcedBytes = 16 << 10
	announcing     = 3
	// turnBytes is how much of a long message goes through memory in one turn.
	turnBytes = 64 << 10
)

// Shares is the number of ranks among which a processor's time is divided. It is 1 also where the figures were measured
// with ranks that share one (Switch is 0).
func (m *Model) Shares(ranksPerCore float64) float64 {
	if m.Switch == 0 {
		return 1
	}
	return max(1, ranksPerCore)
}

// crowd is the model of ranks that share processors: a processor's time is
// divided, and each hand-over from rank to rank waits for a turn.
func (m *Model) crowd(ranksPerCore float64) *Model {
	shares := m.Shares(ranksPerCore)
	if shares == 1 {
		return m
	}
	divided := func(c Curve) Curve {
		d := slices.Clone(c)
		for i := range d {
			d[i].Seconds *= shares
		}
		return d
	}
	turns := func(c Curve) Curve {
		d := divided(c)
		for i := range d {
			n := 1 + float64(d[i].Bytes)/turnBytes
			if d[i].Bytes >= announcedBytes {
				n += announcing
			}
			d[i].Seconds += n * m.Switch
		}
		return d
	}
	d := *m
	d.Host.OneWay, d.Host.Exchange, d.Merged = turns(m.Host.OneWay), turns(m.Host.Exchange), turns(m.Merged)
	d.Settled, d.Gathered, d.Scattered = turns(m.Settled), turns(m.Gathered), turns(m.Scattered)
	d.Combine, d.Folded, d.Copy = divided(m.Combine), divided(m.Folded), divided(m.Copy)
	return &d
}

// Check reports what is wrong with a model read from a file. A model has figures for both classes of links: where only one
// class was there to be measured, the other has the default's.
func (m *Model) Check() error {
	for _, figure := range []struct {
		name    string
		seconds float64
	}{
		{"cross", m.Cross}, {"overhead", m.Overhead}, {"switch", m.Switch},
		{"host.gap_per_byte", m.Host.Gap}, {"network.gap_per_byte", m.Net.Gap},
	} {
		if !(figure.seconds >= 0) || math.IsInf(figure.seconds, 0) {
			return fmt.Errorf("plan: model %s: %s: %g s makes no sense", m.Name, figure.name, figure.seconds)
		}
	}
	if m.NetPartBytes < 0 {
		return fmt.Errorf("plan: model %s: network_part_bytes: %d bytes make no sense", m.Name, m.NetPartBytes)
	}
	for _, named := range m.Curves() {
		name, c := named.Name, *named.Curve
		if len(c) == 0 && named.Measure == Needed {
			return fmt.Errorf("plan: model %s: %s has no points", m.Name, name)
		}
		for i, p := range c {
			if p.Bytes < 0 || !(p.Seconds >= 0) || math.IsInf(p.Seconds, 0) {
				return fmt.Errorf("plan: model %s: %s: point %d: %d bytes in %g s makes no sense", m.Name, name, i, p.Bytes, p.Seconds)
			}
			if i > 0 && p.Bytes <= c[i-1].Bytes {
				return fmt.Errorf("plan: model %s: %s: bytes must ascend, but %d follows %d", m.Name, name, p.Bytes, c[i-1].Bytes)
			}
		}
	}
	return nil
}

// LowerBound is the least time in which a collective of n bytes (Problem.TotalBytes) over p ranks
// can be done on links α, β and processors γ; for an allreduce ⌈log₂p⌉α + 2(p-1)/p·nβ + (p-1)/p·nγ.
//
// Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and experience", 2007, table 1.
func LowerBound(k Kind, p, n int, alpha, beta, gamma float64) float64 {
	share := float64(p-1) / float64(p) * float64(n)
	t := float64(rounds2(p)) * alpha
	switch k {
	case Barrier:
	case Bcast:
		t += float64(n) * beta
	case Reduce:
		t += float64(n)*beta + share*gamma
	case Allreduce:
		t += 2*share*beta + share*gamma
	case ReduceScatter:
		t += share * (beta + gamma)
	case Scan, Exscan:
		t += float64(n) * (beta + gamma)
	default: // gather, scatter, allgather, alltoall: n is the sum of all blocks
		t += share * beta
	}
	return t
}

// Choice is a planner with its price.
type Choice struct {
	Planner
	Seconds float64
}

// Rank prices all planners that fit, cheapest first. Equal prices keep the order of the catalog, so that
// all ranks agree.
func Rank(p *Problem, m *Model) []Choice {
	var cs []Choice
	for _, a := range Planners(p.Kind) {
		if a.Why(p) == "" {
			cs = append(cs, Choice{a, a.Predict(p, m)})
		}
	}
	slices.SortStableFunc(cs, func(a, b Choice) int {
		switch {
		case a.Seconds < b.Seconds:
			return -1
		case a.Seconds > b.Seconds:
			return 1
		}
		return 0
	})
	return cs
}
