package collective

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/fence"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/internal/procmem"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// arena is memory that all ranks of a communicator within one host have mapped: in
// it they do collectives without messages. Each rank writes to its own part and reads all of them.
//
// A part consists of words that only grow, a line each, and a line that says who the rank is; of a ring of slots and a
// store for short vectors (arena_slots.go); and of a ring of pieces for long ones (arena_pieces.go). Where the ranks may
// read each other's memory, long vectors can also do without pieces (arena_direct.go).
//
// After Graham, Shipman, "MPI support for multi-core architectures: optimized shared memory collectives", 2008.
type arena struct {
	me        int
	parts     []*part
	own       *part   // this rank's
	others    []int   // in the order in which this rank waits for them
	elsewhere rankSet // in a crowd: ranks that run on other processors than this one
	mates     []int   // in a crowd: ranks that run on this one's processor, and need it to come to a meeting

	fences bool            // writers need a full fence of their own: see package fence
	home   osyield.Home    // of this rank; the engine has another for its own waits
	pauses []osyield.Pause // by rank that is waited for
	spins  int             // looks at a word before the core is given away
	yields int             // times that the core is given away before the rank sleeps
	ahead  int             // steps of a long collective that a rank shows ahead of the one that it takes
	store  int             // bytes of the store that are used

	drop    func() // gives the memory back
	tickets uint64 // given out, guarded by the state's lock

	served fence.Word   // tickets whose meeting has ended
	queued atomic.Int32 // goroutines that wait for their turn
	mu     sync.Mutex
	next   *sync.Cond // served has grown

	// Of the meeting that is served.
	turn    uint64                  // meetings begun
	freed   uint64                  // turn of which the slot has been freed ahead: see freeNext
	heads   [slots][slotHead]uint64 // copies of this rank's slots: a line that others have read is in their caches, not here
	leaving *order                  // of the next barrier, nil before the first meeting
	waited  [maxRanks]waits         // by rank that is waited for in a slot
	lines   int                     // of the slot shown last
	stored  int                     // bytes of the store used in this round
	steps   uint64                  // of long and direct collectives so far
	ring    [pieces]usage
	pace    pace
	sleeper *execution // stands for the meeting while this rank sleeps

	// Of direct ones.
	pids       []int           // the ranks' processes; nil: not all ranks can read all others' memory
	buffers    [2]buffer       // of this rank: what it gives, and its result
	views      [][]view        // by rank: memory that is mapped
	bufferVote [lengths]uint64 // this rank's, heapVote or mappedVote
	allMapped  [lengths]bool   // as the ranks have agreed: entries with readsMapped are direct then
	scratch    [2][]byte
	saved      []byte // an input that the result overwrites, at most idleBytes between calls
}

// newArena is an arena of parts. processors says where each rank should run, -1 if that is not known.
func newArena(s *state, parts []*part, ranksPerCore float64, processors []int) *arena {
	home := processors[s.rank]
	a := &arena{me: s.rank, parts: parts, own: parts[s.rank], home: osyield.NewHome(home), pauses: slices.Repeat([]osyield.Pause{osyield.NewPause()}, len(parts)), spins: spinsAlone, yields: yieldsAlone, ahead: aheadAlone, store: storeBytes,
		drop: func() {}, sleeper: &execution{state: s, until: until{off: s.off}}, views: make([][]view, len(parts))}
	if ranksPerCore > 1 {
		a.home = osyield.NewCrowdedHome(home)
		a.spins, a.yields, a.ahead, a.store = spinsCrowded, yieldsCrowded, aheadCrowded, storeCrowded
		for r, p := range processors {
			switch {
			case home < 0 || p < 0:
			case p != home:
				a.elsewhere |= oneRank(r)
			case r != a.me:
				a.mates = append(a.mates, r)
			}
		}
	}
	for _, set := range []rankSet{a.everybody() &^ a.elsewhere, a.elsewhere} {
		for r := range parts {
			if r != a.me && set.has(r) {
				a.others = append(a.others, r)
			}
		}
	}
	a.next = sync.NewCond(&a.mu)
	return a
}

// enter waits until it is a ticket's turn: meetings of several goroutines are
// held in the order in which they were called.
func (a *arena) enter(ticket uint64) {
	if a.served.Load()+1 == ticket {
		return
	}
	a.queued.Add(1)
	fence.Everywhere() // so that whoever leaves meanwhile sees queued, or this sees served grow
	a.mu.Lock()
	for a.served.Load()+1 != ticket {
		a.next.Wait()
	}
	a.mu.Unlock()
	a.queued.Add(-1)
}

func (a *arena) leave(ticket uint64) {
	a.served.Store(ticket)
	if a.fences {
		a.queued.Add(0) // a full fence
	}
	if a.queued.Load() > 0 {
		a.mu.Lock()
		a.next.Broadcast()
		a.mu.Unlock()
	}
}

// Words of a part, by index. A line is what processors pass around.
const (
	line      = 8
	lineBytes = line * 8
	sleepers  = 0 * line // ranks that sleep until a word of this part grows
	flagShown = 1 * line // last step of a long collective whose piece is written
	flagTaken = 2 * line // last step of which this rank has taken the others' pieces
	withdrawn = 3 * line // the meeting that this rank gave up
	released  = 5 * line // last turn of a barrier that this rank has left, where others leave after it
	flagWords = 6 * line

	// Who the rank is: its procmem.Introduction, of which the number is the secret.
	introProcess = 4 * line
	introAddress = introProcess + 1
	introSecret  = introProcess + 2

	slots       = 16                  // turns in the ring
	slotWords   = 8 * line            // turn, signature, number and vote, and a vector of a few lines or where in the store it is
	callAt      = 3                   // word with the number of the call and the rank's votes: see pace
	slotStride  = slotWords + 17*line // far enough for short vectors (memcopy.ReadAheadBytes), and not all in the same sets of a cache
	slotHead    = 4                   // words before the vector
	inlineBytes = (slotWords - slotHead) * 8
	slotBytes   = 8 << 10 // of a short vector

	// The store has room for all turns of the ring. Where ranks have caches of their own it is much larger, since memory
	// that has left the caches of its readers is quicker to write.
	storeBytes   = 2 << 20
	storeCrowded = 2 * slots * slotBytes
	_            = uint(storeCrowded - (slots+1)*(slotBytes+memcopy.ReadAheadBytes)) // with the gaps, and what is unused where it turns back

	// The ring of pieces is as large for the same reason, and was quicker so where ranks share caches, too. A piece is as
	// small as it can be without costing more in crossings than it gains by overlap: its readers begin when it has been
	// written.
	pieces      = 32                                        // steps in the ring
	pieceBytes  = 64 << 10                                  // of a vector, or of all blocks, in one step
	pieceStride = (pieceBytes + memcopy.ReadAheadBytes) / 8 // words

	maxArena   = 16 // ranks
	arenaAfter = 16 // collectives on a communicator before it gets an arena
	maxArenas  = 16 // of a rank at a time, of some 4 MiB each

	storeAt    = flagWords + slots*slotStride
	piecesAt   = storeAt + storeBytes/8
	arenaWords = piecesAt + pieces*pieceStride
)

// part is a rank's part of an arena.
type part [arenaWords]uint64

// arenaSuits reports whether there can be an arena: all ranks share memory and are few, and the system's MPI library does
// not do all collectives. All ranks get the same answer. The state is locked.
func (s *state) arenaSuits(c *mpi.Comm) bool {
	if _, native := c.Native(); native && s.config.Library == LibraryAlways || s.size < 2 || s.size > maxArena || s.sizesOnly {
		return false
	}
	for r := range s.size {
		if r != s.rank && !c.SharesMemory(r) {
			return false
		}
	}
	return true
}

// arenasKey names the attribute of a world's communicator that counts the rank's arenas.
var arenasKey mpi.Keyval

// makeArena makes an arena as a part of q, unless one of the ranks has too many. Collective. Without it everything goes by
// messages: an error means that the ranks do not agree.
func (s *state) makeArena(ctx context.Context, c *mpi.Comm, q *call) (*arena, error) {
	alive := c.World().Comm().Attribute(&arenasKey, func() any { return new(atomic.Int32) }).(*atomic.Int32)
	few, err := s.allCan(ctx, c, q, alive.Add(1) <= maxArenas)
	var a *arena
	if few && err == nil {
		a, err = s.mapArena(ctx, c, q)
	}
	if a == nil {
		alive.Add(-1)
		return nil, err
	}
	unmap := a.drop
	a.drop = func() {
		unmap()
		alive.Add(-1)
	}
	return a, nil
}

// mapArena maps the ranks' memory, as a part of q. Collective.
func (s *state) mapArena(ctx context.Context, c *mpi.Comm, q *call) (*arena, error) {
	// A rank that has called collectives off does not come here, or has left: the others must not wait for it.
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(s.off, func() { end(calledOff(s.broken.Load())) })()
	shared, err := mpi.AllocShared[uint64](ctx, c, arenaWords)
	switch {
	case errors.Is(err, mpi.ErrTransport): // all are told
		s.config.log().Warn("no shared memory for collectives", "comm", s.name, "err", err)
		return nil, nil
	case err != nil:
		return nil, err
	}
	drop := func() {
		if err := shared.Free(); err != nil {
			s.config.log().Warn("shared memory of collectives not freed", "comm", s.name, "err", err)
		}
	}
	introduce(shared.Part(s.rank))
	parts := make([]*part, s.size)
	for r := range parts {
		parts[r] = (*part)(shared.Part(r))
		procmem.Populate(mpi.Bytes(parts[r][:]))
	}
	// If fences do not reach one of the ranks, all of them fence for themselves. Likewise all ranks read each other's
	// memory, or none does. When that is tried all have introduced themselves, since they have agreed on the fences.
	fenced, err := s.allCan(ctx, c, q, fence.Register())
	if err != nil {
		drop()
		return nil, err
	}
	pids := processes(parts)
	read, err := s.allCan(ctx, c, q, pids != nil)
	if err != nil {
		drop()
		return nil, err
	}
	processors := make([]int, len(parts))
	for r := range processors {
		processors[r] = c.Processor(r)
	}
	a := newArena(s, parts, c.RanksPerCore(), processors)
	a.fences = !fenced
	if read {
		a.allowReading(pids)
	}
	uncount := c.CountsCalls(&a.served)
	a.drop = func() {
		uncount()
		a.dropViews()
		drop()
	}
	return a, nil
}

// allCan reports whether all ranks can do something in the arena, as a part of q.
func (s *state) allCan(ctx context.Context, c *mpi.Comm, q *call, can bool) (bool, error) {
	vote := []uint8{0}
	if can {
		vote[0] = 1
	}
	part := q.part(mapping)
	setPair(&part, plan.Allreduce, vote, vote, Min)
	err := s.perform(ctx, c, &part)
	return vote[0] == 1, err
}

// canRead reports whether the ranks can read each other's memory. Before there is an arena nobody knows, and it is true.
func (s *state) canRead() bool {
	a := s.arena.Load()
	return a == nil || a.pids != nil
}

// bytes is n bytes of a part from a word on.
func (p *part) bytes(word, n int) []byte {
	return (*[arenaWords * 8]byte)(unsafe.Pointer(p))[word*8:][:n]
}

// slot is the word at which the slot of a turn begins.
func slot(turn uint64) int { return flagWords + int(turn%slots)*slotStride }

// pieceOf is n bytes of the piece that a rank uses in a step.
func (a *arena) pieceOf(rank int, s step, at, n int) []byte {
	word := piecesAt + int(s.number%pieces)*pieceStride
	return a.parts[rank].bytes(word+at/8, n)
}
