package ps

import (
	"fmt"
)

// page is the memory of a block's values. Answers are sent straight from it, so an update while one of them is on
// its way goes to a copy.
type page struct {
	bytes   []byte
	readers int
}

// slab is one block in a server's memory. It is changed only by the server's
// loop.
type slab struct {
	*block
	rule    Rule
	gate    *gate
	alloc   *allocator
	page    *page
	slots   [][]byte // the optimizer's vectors
	version int64    // updates made, -1 until the values are set

	staged  [][]byte // Sync: gradient of each worker that has landed
	weights []float64
	sum     []byte  // Sync: gradients added so far
	weight  float64 // of sum
	next    int     // Sync: first worker not yet looked at for sum
	flags   uint8   // of all gradients of this step
	steps   int64   // what they add to the global step

	waiting []asker // requests for a later version
	held    []offer // gradients of a later step, or for which there was no room

	spare []*page // pages that nobody reads
}

// store is the part of the tables that one server owns.
type store struct {
	blocks [][]*slab // nil where another server owns it
	alloc  allocator
	pool   map[int][][]byte

	boundBytes int
	heldBytes  int  // gradients received or being received, and neither applied nor added
	usedBytes  int  // of heldBytes: those of gradients that could have been held back
	beyond     bool // one gradient that is being received exceeds the bound
	peakBytes  int
}

func newStore(c Config, s *shards, server int) (*store, error) {
	workers := len(c.Cluster.Workers)
	bound, err := unappliedBytes(c, workers*s.ownedBytes(server), server)
	if err != nil {
		return nil, err
	}
	st := &store{boundBytes: bound, pool: map[int][][]byte{}, alloc: allocator{comm: c.Comm, log: c.Log}}
	for _, blocks := range s.blocks {
		row := make([]*slab, len(blocks))
		owned := 0
		for i := range blocks {
			if blocks[i].server == server {
				owned++
			}
		}
		// With backup workers the table's whole shard is one step's unit.
		var shared *gate
		if c.backup() {
			shared = newGate(c.Mode, workers, c.Aggregate, owned)
		}
		for i := range blocks {
			b := &blocks[i]
			if b.server != server {
				continue
			}
			g := shared
			if g == nil {
				g = newGate(c.Mode, workers, c.Aggregate, 1)
			}
			sl := &slab{block: b, rule: c.Rule, gate: g, alloc: &st.alloc, page: &page{bytes: st.alloc.bytes(b.bytes())}, version: -1}
			for range c.Rule.Slots() {
				sl.slots = append(sl.slots, st.alloc.bytes(b.bytes()))
			}
			if c.Mode == Sync {
				sl.staged = make([][]byte, workers)
				sl.weights = make([]float64, workers)
			}
			row[i] = sl
		}
		st.blocks = append(st.blocks, row)
	}
	return st, nil
}

// unappliedBytes is the bound on the gradients that a server holds. all is the size of all workers' gradients for
// one step, of the server's share of the tables.
func unappliedBytes(c Config, all, server int) (int, error) {
	need := 0
	if c.backup() {
		need = all
	}
	switch {
	case c.UnappliedBytes == 0:
		return max(defaultUnappliedBytes, need), nil
	case need > c.UnappliedBytes:
		return 0, configError("aggregating %d of %d workers needs room for %d bytes of gradients on ps %d, the bound is %d: a higher one helps, more servers, or smaller tables",
			c.Aggregate, len(c.Cluster.Workers), need, server, c.UnappliedBytes)
	}
	return c.UnappliedBytes, nil
}

// find returns the slab that a frame names, or why there is none here.
func (st *store) find(h *header) (*slab, error) {
	if int(h.table) >= len(st.blocks) || int(h.block) >= len(st.blocks[h.table]) {
		return nil, fmt.Errorf("table %d has no block %d", h.table, h.block)
	}
	sl := st.blocks[h.table][h.block]
	if sl == nil {
		return nil, fmt.Errorf("block %d of table %d is another server's", h.block, h.table)
	}
	return sl, nil
}

// ready reports whether the values of all blocks have been set.
func (st *store) ready() bool {
	ready := true
	st.each(func(sl *slab) { ready = ready && sl.version >= 0 })
	return ready
}

// each calls f for every slab of the server.
func (st *store) each(f func(*slab)) {
	for _, row := range st.blocks {
		for _, sl := range row {
			if sl != nil {
				f(sl)
			}
		}
	}
}

// room reports whether a gradient of n bytes may be received now, and whether it exceeds the bound. In Sync mode
// gradients are added in the order of the workers. Were the memory full of gradients of later workers, the earliest
// missing one could never come in, and nothing would ever be freed. So the earliest missing gradient (next) is let
// in beyond the bound: one at a time, because it is added, and its memory freed, as soon as it is here. Values to
// be set are let in likewise: their sender may give the missing gradient only after them.
func (st *store) room(n int, next bool) (ok, beyond bool) {
	switch {
	case st.usedBytes == 0 || st.usedBytes+n <= st.boundBytes:
		return true, false
	case next && !st.beyond:
		return true, true
	}
	return false, false
}

// count counts a gradient of n bytes. A short one, which has come with its header, takes no room from gradients
// that wait for it.
func (st *store) count(n int) {
	st.heldBytes += n
	st.peakBytes = max(st.peakBytes, st.heldBytes)
	if n > inlineBytes {
		st.usedBytes += n
	}
}

func (st *store) discount(n int) {
	st.heldBytes -= n
	if n > inlineBytes {
		st.usedBytes -= n
	}
}

// stage takes memory for a gradient; release gives it back.
func (st *store) stage(n int) []byte {
	st.count(n)
	free := st.pool[n]
	if len(free) == 0 {
		return st.alloc.bytes(n)
	}
	b := free[len(free)-1]
	st.pool[n] = free[:len(free)-1]
	return b
}

func (st *store) release(b []byte) {
	st.discount(len(b))
	st.recycle(b)
}

// recycle keeps memory that is not counted, or not any more, for gradients to come.
func (st *store) recycle(b []byte) { st.pool[len(b)] = append(st.pool[len(b)], b) }

// writable returns the values for changing in place: a copy of them if an
// answer still reads the page.
func (sl *slab) writable() []byte {
	if sl.page.readers == 0 {
		return sl.page.bytes
	}
	old := sl.page
	sl.page = sl.free()
	copy(sl.page.bytes, old.bytes)
	return sl.page.bytes
}

// free takes a page that nobody reads. A block never has more pages than the answers that read it at one time, plus
// one.
func (sl *slab) free() *page {
	n := len(sl.spare)
	if n == 0 {
		return &page{bytes: sl.alloc.bytes(sl.bytes())}
	}
	p := sl.spare[n-1]
	sl.spare = sl.spare[:n-1]
	return p
}

// unread ends the use of a page by an answer, or by the function that took it.
func (sl *slab) unread(p *page) {
	p.readers--
	if p.readers == 0 && p != sl.page {
		sl.spare = append(sl.spare, p)
	}
}

// set replaces the values (slot 0) or a vector of the optimizer as they are. Pulls of a block wait until its values
// have been set.
func (sl *slab) set(slot int, data []byte, version int64) {
	if slot > 0 {
		copy(sl.slots[slot-1], data)
		return
	}
	copy(sl.writable(), data)
	sl.version = version
	sl.gate.step = version
}

// update applies the sum of gradients with their weight.
func (sl *slab) update(sum []byte, weight float64) {
	values := sl.writable()
	switch sl.typ {
	case Float32:
		applyBytes[float32](sl.rule, sl.version, values, sum, sl.slots, weight)
	case Float64:
		applyBytes[float64](sl.rule, sl.version, values, sum, sl.slots, weight)
	}
	sl.version++
}

func applyBytes[F Float](r Rule, n int64, values, grad []byte, slots [][]byte, weight float64) {
	var s [2][]F
	for i := range slots {
		s[i] = typed[F](slots[i])
	}
	Apply(r, n, typed[F](values), typed[F](grad), s[:len(slots)], weight)
}

// accumulate adds staged gradients to the sum in the order of the workers, as far as the
// order is certain: up to the first worker whose gradient may still come.
func (sl *slab) accumulate(st *store) {
	for ; sl.next < len(sl.staged); sl.next++ {
		switch w := sl.next; {
		case sl.staged[w] != nil:
			sl.add(st, w)
		case sl.gate.active[w]:
			return
		}
	}
}

// accumulateMembers adds the staged gradients of all workers that the step is made of.
func (sl *slab) accumulateMembers(st *store) {
	for ; sl.next < len(sl.staged); sl.next++ {
		if w := sl.next; sl.staged[w] != nil && sl.gate.member(w) {
			sl.add(st, w)
		}
	}
}

// add adds a worker's staged gradient to the sum.
func (sl *slab) add(st *store, worker int) {
	g := sl.staged[worker]
	sl.staged[worker] = nil
	sl.weight += sl.weights[worker]
	if sl.sum == nil {
		sl.sum = g
		st.discount(len(g))
		return
	}
	switch sl.typ {
	case Float32:
		addTo(typed[float32](sl.sum), typed[float32](g))
	case Float64:
		addTo(typed[float64](sl.sum), typed[float64](g))
	}
	st.release(g)
}

func addTo[F Float](dst, src []F) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] += src[i]
	}
}

// applyStep applies the gathered gradients and clears the way for the next step. Gradients that came too late for
// the sum are thrown away. It returns the flags of all gradients of the step, and what they add to the global step.
func (sl *slab) applyStep(st *store) (flags uint8, steps int64) {
	sl.accumulateMembers(st)
	sl.update(sl.sum, sl.weight)
	st.recycle(sl.sum)
	for w, late := range sl.staged {
		if late != nil {
			st.release(late)
			sl.staged[w] = nil
		}
	}
	flags, steps = sl.flags, sl.steps
	sl.sum, sl.weight, sl.next, sl.flags, sl.steps = nil, 0, 0, 0, 0
	return flags, steps
}
