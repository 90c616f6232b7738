package shm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/internal/fence"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/internal/procmem"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// standing is where this rank stands with a peer. Only the holder of the
// world's lock reads and writes it.
type standing uint8

const (
	// apart: nothing has been sent in either direction.
	apart standing = iota
	// meeting: a connection is being made.
	meeting
	// up: messages flow.
	up
	// leaving: no more messages; memory is still in use by one of the two.
	leaving
	// gone: lost, or detached.
	gone
)

// endpoint is one peer of this rank.
type endpoint struct {
	p       *Provider
	rank    int
	state   standing
	hungup  bool          // the peer's process or its provider has ended
	broken  error         // why it is lost, to be reported by the next Poll
	reading bool          // a drain is under way
	hot     bool          // polled every time
	pause   osyield.Pause // between two looks of Take

	link     *link // what the two ranks share
	vm       bool  // process_vm_* works, both ways
	slotless bool  // there is no memory for the slots of exposures
	pid      int

	board  *board // the peer's
	bell   int    // the peer's
	fence  bool   // this process is not reached by the peer's membarrier
	fenced atomic.Uint64

	in  inbox
	out outbox

	exposures   *exposures
	mappedPulls int // out of mapped memory, so far
	pulls       int // of this rank from the peer, under way
	copying     int // copies of this rank to or from the peer's memory, under way
}

// outbox is the sending side of a pair: cells to the peer.
type outbox struct {
	cells  *[cells]cell
	next   uint64 // position of the next cell
	limit  uint64 // position that needs credit first
	credit *atomic.Uint64
	want   *atomic.Uint32
	mem    []byte // the ring's whole range
	ring   byteRing

	run        run    // the run in the cell written last, if that may take more
	unanswered int    // short messages since heard changed
	heard      uint64 // how far this rank had read the peer's messages at the last of them

	blocked   bool // there was no room: find out about credit before sleeping
	streams   []departure
	crossing  memcopy.Crossing
	freshness freshness
}

// inbox is the receiving side: cells from the peer.
type inbox struct {
	cells    *[cells]cell
	next     uint64 // position of the next cell
	credited uint64 // position at the last credit
	due      uint64 // position at which the next credit is due
	parts    int    // messages of the run at next that have been read
	run      uint64 // word 0 of that run, without the count
	bytes    int    // taken from the byte ring since the last credit
	credit   *atomic.Uint64
	want     *atomic.Uint32
	mem      []byte
	most     uint32 // how large the byte ring may become, the same for both directions
	expected uint64 // span that the next payload most likely has (ringPayload)
	header   transport.Header

	stream arrival
}

const (
	// creditCells and creditBytes are how much a receiver reads before it gives the sender credit. A sender must never have
	// to wait for credit that the receiver may hold back.
	creditCells = cells / 4
	creditBytes = firstRing / 4
)

// direction is that of this rank's messages to the peer.
func (ep *endpoint) direction() int {
	if ep.p.cfg.Rank < ep.rank {
		return 0
	}
	return 1
}

// attach takes the segment that the two ranks share into use.
func (ep *endpoint) attach(l *link) {
	mine, theirs := ep.direction(), 1-ep.direction()
	ep.link, ep.vm, ep.pid = l, l.vm, l.pid
	ep.board, ep.bell, ep.fence = at[board](l.board, 0), l.bell, !ep.p.bell.barrier && !fence.StoreIsFull
	head := at[pairHead](l.mem, 0)

	ep.out = outbox{
		cells: pairCells(l.mem, mine), limit: cells, mem: pairRing(l.mem, mine),
		credit: &head.direction[mine].credit, want: &head.direction[mine].want,
	}
	ep.out.ring.most = ep.p.ringLimit()
	ep.out.ring.more = func(from, to uint32) error {
		if err := back(l.memory, ringOffset(mine)+int(from), int(to-from)); err != nil {
			return err
		}
		procmem.Populate(ep.out.mem[from:to])
		return nil
	}
	ep.in = inbox{
		cells: pairCells(l.mem, theirs), due: creditCells, mem: pairRing(l.mem, theirs), most: ep.out.ring.most,
		credit: &head.direction[theirs].credit, want: &head.direction[theirs].want,
	}
	ep.state = up
}

// room reports whether n more cells can be written. If not, it asks the peer for credit.
func (ep *endpoint) room(n uint64) bool {
	out := &ep.out
	if out.next+n <= out.limit {
		return true
	}
	if ep.refresh() && out.next+n <= out.limit {
		return true
	}
	if ep.broken != nil {
		return false
	}
	ep.block()
	return ep.refresh() && out.next+n <= out.limit
}

// block asks the peer to say when there is room.
func (ep *endpoint) block() {
	ep.out.blocked = true
	ep.out.want.Store(1)
}

// refresh reads the peer's credit and reports whether there is more of it.
func (ep *endpoint) refresh() bool {
	out := &ep.out
	credit := out.credit.Load()
	seen := out.limit - cells
	if credit == seen {
		return false
	}
	if credit < seen || credit > out.next {
		ep.fail(fmt.Errorf("rank %d credits %d cells, of which %d were sent and %d credited before: %w",
			ep.rank, credit, out.next, seen, errMalformed))
		return false
	}
	out.limit = credit + cells
	out.ring.release(credit)
	return true
}

// piece finds room in the byte ring for n bytes that the next cell carries.
func (ep *endpoint) piece(n int) (offset uint32, ok bool) {
	out := &ep.out
	if offset, ok = out.ring.alloc(n, out.next); ok {
		return offset, true
	}
	if out.ring.stuck != nil && out.ring.size < firstRing {
		ep.fail(out.ring.stuck)
		return 0, false
	}
	for range 2 {
		if ep.refresh() || out.ring.grow {
			if offset, ok = out.ring.alloc(n, out.next); ok {
				return offset, true
			}
		}
		ep.block()
	}
	return 0, false
}

const (
	// aheadCells is how many cells before its use a cell's line is fetched from the reader, who had it last.
	aheadCells = 8
	// ownAheadBytes is the length of the shortest payload after which the ring's lines for another one as long are fetched.
	ownAheadBytes = 512
)

// post publishes the next cell, c, whose other words are complete. w0 has no sequence number yet. The store comes before all else, since the
// peer waits for it.
func (ep *endpoint) post(c *cell, w0 uint64) {
	fence.Store(&c[0], w0|uint64(uint32(ep.out.next+1)))
	ep.posted()
}

// posted goes on to the cell after the one that has been published.
func (ep *endpoint) posted() {
	out := &ep.out
	fence.Ahead(&out.cells[(out.next+aheadCells)&cellMask][0])
	out.next++
	out.run.w0 = 0
	ep.notify()
}

// nextCell is where the next message goes. The caller has made sure of room.
func (ep *endpoint) nextCell() *cell { return &ep.out.cells[ep.out.next&cellMask] }

// sendNext writes a message to the next cell.
func (ep *endpoint) sendNext(h *transport.Header, payload []byte) transport.Outcome {
	if len(ep.out.streams) > 0 || ep.out.next >= ep.out.limit && !ep.room(1) {
		return ep.refused()
	}
	n := len(payload)
	short := n <= shortBytes && h.Token|h.Aux == 0 && h.Bytes == uint64(n)
	c := ep.nextCell()
	switch {
	case short:
		c[1] = envelope(h)
		memcopy.Short(c.bytes(2, n), payload)
		if ep.streaming() && n <= runBytes && h.Kind != transport.Data {
			ep.post(c, word0(h.Kind, formRun, runInline(n, 1)))
			ep.out.run.begin(c, uint32(ep.out.next), h.Kind, envelope(h), n)
			break
		}
		ep.post(c, word0(h.Kind, formShort, n))
	case n <= fullBytes:
		c.putHeader(h)
		copy(c.bytes(5, n), payload)
		ep.post(c, word0(h.Kind, formFull, n))
	default:
		offset, ok := ep.piece(n)
		if !ok {
			return ep.refused()
		}
		memcopy.Owning(ep.out.mem[offset:], payload)
		c.putHeader(h)
		c[5] = span(offset, uint32(n))
		ep.post(c, word0(h.Kind, formRing, 0))
		if n >= ownAheadBytes {
			memcopy.OwnAhead(ep.out.ring.ahead(ep.out.mem, n))
		}
	}
	return transport.Sent
}

// refused is Full, or Gone if the attempt has shown that the peer is broken.
func (ep *endpoint) refused() transport.Outcome {
	if ep.broken != nil {
		return transport.Gone
	}
	return transport.Full
}

// advance leaves the cell that has been read.
func (ep *endpoint) advance() {
	if ep.in.step() {
		ep.giveCredit()
	}
}

// step leaves the cell that has been read, and reports whether credit is due to the sender.
func (in *inbox) step() (due bool) {
	in.next++
	return in.next >= in.due || in.bytes >= creditBytes
}

// giveCredit tells the sender how far this rank has read.
func (ep *endpoint) giveCredit() {
	in := &ep.in
	in.credited, in.due, in.bytes = in.next, in.next+creditCells, 0
	in.credit.Store(in.next)
	if in.want.Load() != 0 {
		in.want.Store(0)
		ep.notify()
	}
}

// errMalformed: a peer of this job wrote what it never should.
var errMalformed = errors.New("malformed shared memory")
