package collective

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
)

// What an arena's ways to do a collective cost, in the terms of the model that also prices the plans, and
// the choice between them and the plans. How they are done is in the other files of arena.

// Where plans are named, these are collectives without messages, of ranks of one host: through memory
// that they share, and straight out of each other's buffers.
const (
	MemoryPlan = "memory"
	DirectPlan = "direct"
)

const (
	// callShare is the part of a crossing that is the call itself, which a rank that waits for nobody pays, too. It was
	// measured between neighbours.
	callShare = 0.6
	// coldOwn is what the root's copy of its own block costs, in copies of that length, where the caches have no room for
	// what it deals or gathers: the pieces for or from the others come through the same memory at that time.
	coldOwn = 1.5
	// ledCall is how long a call takes that waits for nobody.
	ledCall = 0.075e-6
)

// memorySeconds is the price of a collective through memory that the ranks share, the mean over the ranks: the crossings,
// what a rank gives, takes and combines, and its own block. Giving and taking go on at the same time and have one price:
// m.Given, or m.Pieces where all ranks do both. Long vectors cost a crossing for each time that they fill the ring. Where
// ranks share processors, their work takes as many times as long as there are ranks on one, but for the root's (ofRoot),
// and a crossing includes a turn of each of them.
func memorySeconds(p *plan.Problem, m *plan.Model) float64 {
	n, ranks, others := p.Count*p.ElemBytes, float64(p.Size), float64(p.Size-1)
	if p.Counts != nil {
		n = p.TotalBytes() / p.Size
	}
	shares, cross := m.Shares(p.RanksPerCore), crossing(m)
	if shares > 1 {
		cross += m.Switch
	}
	divided := shares
	if ofRoot(p.Kind) {
		divided = 1
	}
	ring := pieces * pieceBytes
	if deals(p.Kind) {
		ring = pieces * boxBytes(p.Size)
	}
	memory := footprint(p, n)
	reduced := p.Kind == plan.Allreduce && !fitsSlot(p)
	if reduced {
		n /= p.Size
		cross *= 2
		ring /= 2
	}
	cross *= float64(1 + n/ring)
	given, folded := m.Given.Or(m.Host.OneWay), m.Folded.Or(m.Combine)
	short, part := fitsSlot(p), n
	// A vector of more than inlineBytes lies in the store, and costs as much as a whole slot at least, however little of it
	// a rank wants.
	if short && p.Kind != plan.Allreduce && deals(p.Kind) && p.Size*n > inlineBytes {
		part = max(n, slotWords*8)
	}
	fetch, copied, combined := divided*memory.partOf(given, givenVectors, part), divided*memory.partOf(m.Copy, coreVectors, n), divided*memory.partOf(folded, foldedVectors, n)
	instead := max(0, combined-copied) // by how much it takes longer to combine what comes than to copy it
	exchanged := fetch + copied
	if len(m.Pieces) > 0 {
		exchanged = divided * memory.partOf(m.Pieces, exchangedVectors, part)
	}
	dealt := divided * m.Copy.At(p.Size*n) * others / ranks // by a copy of all blocks: they lie further apart than the bytes of one
	// Ranks that do other things between collectives leave a barrier one after the other, and come to the next call so,
	// too.
	if short && p.Kind != plan.Barrier {
		cross = max(cross, m.Pieces.Alpha())
	}
	waiting := func(n float64) float64 { return cross * (callShare + (1-callShare)*n/ranks) }
	led, scanned, reducing := waiting(others), cross, fetch+combined
	if short {
		led = min(led, ledSeconds(m, others/ranks))
		scanned, reducing = led, exchanged+instead
	}
	fits := memcopy.Fits(p.Size*n, p.Size) // all blocks
	switch p.Kind {
	case plan.Barrier:
		return cross
	case plan.Bcast:
		return led + fetch
	case plan.Scatter:
		mates := (shares - 1) * copied // what the ranks of the root's processor copy meanwhile
		switch {
		case short:
			return led + fetch + copied + dealt
		case fits: // the root copies its own block when the others have theirs
			copied /= ranks
		default:
			copied *= coldOwn
		}
		return led + others*fetch + copied + mates
	case plan.Gather:
		if !fits {
			copied *= coldOwn
		}
		root, leaf := others*fetch+copied, fetch
		if n > ring { // who gives has to wait for the root
			leaf = root
		}
		return waiting(1) + (root+others*leaf)/ranks
	case plan.Reduce:
		return waiting(1) + others*(2*fetch+instead)/ranks
	case plan.Scan, plan.Exscan: // all but one give, and take from half of the others in the mean
		return scanned + others*((1/ranks+0.5)*fetch+instead/2) + copied/ranks
	case plan.Allgather:
		return cross + others*exchanged + copied
	case plan.Alltoall:
		return cross + others*exchanged + copied + dealt/2
	case plan.ReduceScatter:
		return cross + others*reducing + dealt
	case plan.Allreduce:
		if reduced {
			return cross + others*(2*fetch+combined+copied) + copied
		}
	}
	return cross + others*reducing
}

// ofRoot reports whether a collective takes as long as its root works: who waits for it needs no processor.
func ofRoot(k plan.Kind) bool { return k == plan.Scatter || k == plan.Gather || k == plan.Reduce }

// ledSeconds is the price of a short call whose root has been there before: it left the barrier in front of it first, so that
// what it shows is there. The others, a share of the ranks, fetch a line, as half of them did when m.Given was measured.
func ledSeconds(m *plan.Model, fetching float64) float64 {
	return ledCall + 2*fetching*max(0, m.Given.Or(m.Host.OneWay).Alpha()-ledCall)
}

// footprintBytes is how much memory the vectors of all ranks take, where that matters: it decides which caches they fit.
// 0: they fit the nearest.
type footprintBytes int

// footprint is that of a collective with blocks of n bytes. All ranks get the same, whether or not it is in place.
func footprint(p *plan.Problem, n int) footprintBytes {
	if fitsSlot(p) {
		return 0
	}
	vectors := p.Size // what each rank gets
	switch ranks := p.Size; p.Kind {
	case plan.Reduce:
		vectors = ranks + 1
	case plan.Allreduce, plan.Scan, plan.Exscan, plan.Gather, plan.Scatter:
		vectors = 2 * ranks
	case plan.Allgather, plan.ReduceScatter:
		vectors = ranks * (ranks + 1)
	case plan.Alltoall:
		vectors = 2 * ranks * ranks
	}
	return footprintBytes(vectors * n)
}

// How many vectors of a point's length the two ranks had together when a curve was measured.
const (
	givenVectors     = 2 // plan.Model.Given: one to read and one to write
	foldedVectors    = 3 // plan.Model.Folded: two operands and the result
	coreVectors      = 4 // plan.Model.Copy and Combine: each rank's two
	exchangedVectors = 6 // plan.Model.Pieces, Read and Mapped: each rank's block, and room for both
)

// partOf is the time for n bytes, without the curve's constant part, while the vectors of all ranks take the memory of f. A
// byte takes as long as at that point of the curve at which the two ranks had as much memory in use, with so many vectors
// of its length. If that point is longer than n, the time is at least that of n bytes alone: the parts of a long vector are
// given while others are taken, which a vector of one part cannot be.
func (f footprintBytes) partOf(c plan.Curve, vectors, n int) float64 {
	alone := c.At(max(1, n)) - c.Alpha()
	if f == 0 {
		return alone
	}
	whole := max(1, int(f)/vectors)
	scaled := (c.At(whole) - c.Alpha()) * float64(n) / float64(whole)
	if whole > n {
		return max(alone, scaled)
	}
	return scaled
}

// at is partOf with the curve's constant part.
func (f footprintBytes) at(c plan.Curve, vectors, n int) float64 {
	return c.Alpha() + f.partOf(c, vectors, n)
}

// crossing is how long a word takes from rank to rank.
func crossing(m *plan.Model) float64 {
	if m.Cross == 0 {
		return m.Host.OneWay.Alpha()
	}
	return m.Cross
}

// access is how ranks get at each other's buffers, and what that costs.
type access struct {
	copied  plan.Curve // time to copy bytes out of another's buffer
	operand plan.Curve // time to read bytes that are combined, without combining them
	mapped  bool
}

// byKernel: what is to be combined is copied, too.
func byKernel(m *plan.Model) access { return access{copied: m.Read, operand: m.Read} }

// byMapping: what is to be combined is used where it is.
func byMapping(m *plan.Model) access {
	mapped := m.Mapped.Or(m.Copy)
	return access{copied: mapped, operand: plan.Curve{{Seconds: mapped.Alpha()}}, mapped: true}
}

// slices is slicesAllreduce of a problem.
func (by access) slices(p *plan.Problem) bool {
	return p.Kind == plan.Allreduce && slicesAllreduce(p.Size, p.Count*p.ElemBytes, by.mapped)
}

// directSeconds is the price of a direct collective: every rank waits until the last has read. It is the same on all
// ranks, so it does not know which of them copy their input first because it is in place.
func directSeconds(p *plan.Problem, m *plan.Model, by access) float64 {
	n, others := p.Count*p.ElemBytes, float64(p.Size-1)
	if p.Counts != nil {
		n = p.TotalBytes() / p.Size
	}
	memory := footprint(p, n)
	slices := by.slices(p)
	if slices {
		n /= p.Size
	}
	divided := m.Shares(p.RanksPerCore)
	read, copied := divided*memory.at(by.copied, exchangedVectors, n), divided*memory.partOf(m.Copy, coreVectors, n)
	combined := divided * (memory.at(by.operand, exchangedVectors, n) + memory.at(m.Combine, coreVectors, n))
	turns := 0.0
	if divided > 1 {
		turns = 2 * m.Switch
	}
	if !by.mapped && passes(p.Kind, p.Size) {
		return turns + passSeconds(p, m, n, copied, divided)
	}
	switch p.Kind {
	case plan.Bcast:
		if !by.mapped { // who reads the same pages waits for each other
			read *= max(1, others/divided)
		}
		return turns + read
	case plan.Scatter: // all but the root read
		return turns + max(read*max(1/divided, others/float64(p.Size)), copied)
	case plan.Gather, plan.Allgather, plan.Alltoall:
		return turns + others*read + copied
	}
	if slices {
		return turns*3/2 + others*(read+combined)
	}
	return turns + others*combined
}

// passSeconds is the price of messages of n bytes between the root and each of the others.
func passSeconds(p *plan.Problem, m *plan.Model, n int, copied, divided float64) float64 {
	if linear, ok := plan.Named(p.Kind, "linear"); ok && p.Size > 2 {
		return linear.Predict(p, m)
	}
	passed := m.Host.OneWay.At(n)
	switch p.Kind {
	case plan.Scatter:
		if len(m.Scattered) > 0 { // else a whole copy: with a lower price reading was chosen where it lost
			copied = m.ScatteredOwn(n)
		}
		passed += copied
	case plan.Gather: // its root copies while the other rank does
		passed += 2 * copied
	}
	return divided * passed
}

// mappedSeconds is the price of a direct collective on buffers that are mapped. It follows from figures of long vectors,
// which do not show the crossings. Where vectors fit slots these are added: one to begin, one to end, and one for each
// buffer that a rank looks into.
func mappedSeconds(p *plan.Problem, m *plan.Model) float64 {
	by := byMapping(m)
	seconds := directSeconds(p, m, by)
	if fitsSlot(p) {
		passes := 1
		if by.slices(p) { // which have to be read, too
			passes = 2
		}
		seconds += crossing(m) * float64(2+passes*(p.Size-1))
	}
	return seconds
}

// readsMapped reports whether a collective that the arena does in a way becomes direct where all buffers are mapped. One
// through memory does where that is cheaper, unless a way was forced, with two exceptions. Ranks that combine save less
// than ranks that copy, and wait once more, which costs ranks that share processors a turn of all of them: for those
// nothing changes up to a few pieces. And of collectives that fit slots only those of more than inlineBytes become direct
// in which all ranks wait for all: in others a rank would wait once more than it does now.
//
// The same rules hold for a collective that is direct anyway, by the kernel, but not between two ranks: there it is a
// message then, of which both copy a part.
func (f *Config) readsMapped(way string, p *plan.Problem, canRead bool) bool {
	const few = 4
	if _, forced := f.Force[p.Kind]; forced || !canRead || !reads(p.Kind) || way == DirectPlan && p.Size == 2 {
		return false
	}
	if fitsSlot(p) && (p.TotalBytes() <= inlineBytes || !allWaitForAll(p.Kind)) {
		return false
	}
	if p.RanksPerCore > 1 && p.Kind.Reduces() && p.TotalBytes() <= few*pieceBytes {
		return false
	}
	return mappedSeconds(p, f.Model) < memorySeconds(p, f.Model)
}

// allWaitForAll reports whether every rank needs something of every other.
func allWaitForAll(k plan.Kind) bool {
	switch k {
	case plan.Allgather, plan.Alltoall, plan.Allreduce, plan.ReduceScatter:
		return true
	}
	return false
}

// arenaWays are the ways of an arena to do a collective, and their prices.
func arenaWays(p *plan.Problem, m *plan.Model, canRead bool) []Candidate {
	ways := []Candidate{{Plan: MemoryPlan, Source: "Graham, Shipman 2008", Seconds: memorySeconds(p, m)}}
	if canRead && reads(p.Kind) && len(m.Read) > 0 {
		ways = append(ways, Candidate{Plan: DirectPlan, Source: "Ma et al. 2013", Seconds: directSeconds(p, m, byKernel(m))})
	}
	return ways
}

// messageShare is how many times as much as messages a way of the arena may cost and still be taken: the prices of the two
// differ by less than what is measured, and without messages there is less to wait for. slotShare is the same for what goes
// through slots among more than two ranks. There a round of short messages takes up to three times as long as between the
// two that prices come from, each with another rank whose lines are in nobody's caches, and what goes through slots takes
// 1.5 times as long. Two ranks that read each other's memory instead save nothing else, so that reading must be as cheap as
// messages.
const messageShare, slotShare = 1.1, 2.0

// directShare is how many times as much as direct reading the way through memory may cost and still be taken: what goes
// through memory is read directly while ranks are far from each other, and not the other way round. crowdedShare is the
// same where ranks share processors: ranks of one processor find what they take in its caches, which no price knows.
const directShare, crowdedShare = 1.1, 1.5

// arenaWay decides between the ways of an arena, where there is one, and a plan, for which name is empty; why is the
// reason. open: the model has decided, and only for as long as the ranks are near.
func (f *Config) arenaWay(p *plan.Problem, canRead bool) (name, why string, open bool) {
	// A plan that does not fit here is not asked for.
	follows := func(asked string) (way string, ok bool) {
		if asked == MemoryPlan || asked == DirectPlan && canRead && reads(p.Kind) {
			return asked, true
		}
		a, ok := plan.Named(p.Kind, asked)
		return "", ok && a.Why(p) == ""
	}
	if asked, ok := f.Force[p.Kind]; ok {
		if way, ok := follows(asked); ok {
			return way, "forced", false
		}
	}
	if f.Site != nil {
		if r, ok := f.Site.rule(p); ok {
			if way, ok := follows(r.Plan); ok {
				return way, "site table " + f.Site.Name, false
			}
		}
	}
	m := f.Model
	messages := plan.Rank(p, m)[0].Seconds
	share := messageShare
	if p.Size > 2 && fitsSlot(p) {
		share = slotShare
	}
	insteadShare := directShare
	if p.RanksPerCore > 1 {
		insteadShare = crowdedShare
	}
	least := messages * share
	cheapest, what, dearer := messages, "messages", share
	ways := arenaWays(p, m, canRead) // memory first
	for _, c := range ways {
		if c.Seconds < cheapest {
			cheapest, what, dearer = c.Seconds, c.Plan, insteadShare
		}
		price := c.Seconds
		switch {
		case name != "":
			price *= insteadShare
		case c.Plan == DirectPlan && p.Size == 2: // of a message between two, both copy a part
			price *= share
		}
		if price <= least {
			name, least = c.Plan, c.Seconds
		}
	}
	// Messages are cheapest unless the vectors are mapped, which is not known yet. If they are, messages are no quicker
	// than reading for more than two ranks; two of them both copy a part of each message. A root that reads keeps the
	// others waiting. Vectors that turn out not to be mapped go by the cheaper way of the arena.
	if name == "" && p.Size > 2 && !gathers(p.Kind) && f.readsMapped(MemoryPlan, p, canRead) && mappedSeconds(p, m) < messages {
		way := slices.MinFunc(ways, func(a, b Candidate) int { return cmp.Compare(a.Seconds, b.Seconds) })
		return way.Plan, "by model " + m.Name + " for vectors from mpi.Alloc", true
	}
	if least > cheapest {
		return name, fmt.Sprintf("by model %s not more than %.0f %% dearer than %s", m.Name, 100*(dearer-1), what), true
	}
	return name, "cheapest by model " + m.Name, true
}
