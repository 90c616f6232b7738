package collective

import (
	"context"
	"sync"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// arena is memory that all ranks of a host-local communicator have mapped: in
// it they do barriers and allreduces straight out of each other's memory, without
// messages. Each rank writes to its own part and reads all of them.
//
// A part consists of flags, a line each, that only grow (with a count of those who sleep for it); of two slots for short
// vectors; of one box for each rank with input for it; and of a box with results.
//
// After Graham, Shipman, "MPI support for multi-core architectures: optimized shared memory collectives", 2008.
type arena struct {
	me    int
	parts [][]uint64
	keep  any // what the memory belongs to

	tickets uint64 // given out, guarded by the state's lock

	mu     sync.Mutex
	served uint64     // tickets whose operation has ended
	next   *sync.Cond // served has grown
	turn   uint64     // operations begun; of the one that is served
	steps  uint64     // of long operations, likewise
}

func newArena(me int, parts [][]uint64, keep any) *arena {
	a := &arena{me: me, parts: parts, keep: keep}
	a.next = sync.NewCond(&a.mu)
	return a
}

// enter waits until it is a ticket's turn: operations of several goroutines
// are done in the order in which they were called.
func (a *arena) enter(ticket uint64) {
	a.mu.Lock()
	for a.served+1 != ticket {
		a.next.Wait()
	}
	a.mu.Unlock()
}

func (a *arena) leave() {
	a.mu.Lock()
	a.served++
	a.next.Broadcast()
	a.mu.Unlock()
}

// Flags, by the index of their word.
const (
	line       = 8        // words of a cache line
	flagSlot   = 0 * line // turn whose slot is written
	flagInput  = 1 * line // step whose inputs are written
	flagResult = 2 * line // step whose result is written
	flagWords  = 3 * line
	asleep     = 1 // word after each flag: ranks that sleep until it grows

	slotBytes  = 8 << 10 // of a short vector
	slotWords  = (slotBytes + 64) / 8
	boxBytes   = 64 << 10 // of the vector in one step, for one rank
	boxWords   = boxBytes / 8
	maxArena   = 16 // ranks
	arenaAfter = 16 // collectives on a communicator before it gets an arena
)

func arenaWords(ranks int) int { return flagWords + 2*slotWords + (ranks+1)*boxWords }

// arenaSuits: all ranks share memory, and are few. All get the same answer.
func (s *state) arenaSuits(c *mpi.Comm) bool {
	if s.size < 2 || s.size > maxArena || s.sizesOnly {
		return false
	}
	for r := range s.size {
		if r != s.rank {
			if transport, _ := c.Transport(r); transport != "shm" {
				return false
			}
		}
	}
	return true
}

// needArena reports whether the communicator gets its arena now: all its
// ranks come here with the same call.
func (s *state) needArena(c *mpi.Comm, k plan.Kind) bool {
	if k != plan.Barrier && k != plan.Allreduce {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arenaTried || s.seq < arenaAfter {
		return false
	}
	s.arenaTried = true
	return s.arenaSuits(c)
}

// makeArena maps the ranks' memory. Collective. Without it everything goes by messages, so
// an error means that the ranks do not agree.
func (s *state) makeArena(ctx context.Context, c *mpi.Comm) error {
	part, err := mpi.Alloc[uint64](c, arenaWords(s.size))
	if err != nil {
		s.config.log().Warn("no shared memory for collectives", "comm", s.name, "err", err)
		part = nil // the window tells the others
	}
	w, err := mpi.NewWindow(ctx, c, part)
	if err != nil {
		return err
	}
	parts := make([][]uint64, s.size)
	// One that cannot reach all others keeps all from it.
	ok := []uint8{1}
	for r := range s.size {
		if parts[r] = w.Part(r); len(parts[r]) != arenaWords(s.size) {
			ok[0] = 0
		}
	}
	q := pairCall(plan.Allreduce, ok, ok, Min)
	if err := run(ctx, c, &q); err != nil {
		return err
	}
	if ok[0] == 1 {
		s.mu.Lock()
		s.arena = newArena(s.rank, parts, w)
		s.mu.Unlock()
	}
	return nil
}

// bytesAt is n bytes of a part from a word on.
func (a *arena) bytesAt(rank, word, n int) []byte {
	p := a.parts[rank][word:]
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(p))), len(p)*8)[:n]
}

// slot is where a rank writes its short vector in a turn. Two of them alternate: a
// rank that starts turn t has seen all others end turn t-2.
func (a *arena) slot(rank int, turn uint64, n int) []byte {
	return a.bytesAt(rank, flagWords+int(turn&1)*slotWords, n)
}

// box is where a rank writes its input for another one; result is the last box.
func (a *arena) box(rank, to, n int) []byte {
	return a.bytesAt(rank, flagWords+2*slotWords+to*boxWords, n)
}

func (a *arena) result(rank, n int) []byte { return a.box(rank, len(a.parts), n) }
