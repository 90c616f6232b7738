package collective

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/fence"
	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi"
)

const (
	// Looks at a word before the core is given away, when every rank has a
	// core and when there are more ranks than cores: 15 to 40 µs, by how far the others are, and 0.1 µs.
	spinsAlone   = 600
	spinsCrowded = 2
	// The same in a crowd while a rank is waited for that is likely to be running on another core (runsElsewhere): 1.5 to 4 µs.
	// Looking longer saves a switch to another rank and one back.
	spinsElsewhere = 64
	// Yields before it sleeps, likewise: about 40 µs and 1 ms.
	yieldsAlone   = 100
	yieldsCrowded = 1000
	// And no more yields after this time, which in a crowd is looked at on every eighth yield: where other programs want
	// the core, each yield may cost a time slice of each of them.
	yieldTime = 5 * time.Millisecond
	// Steps shown ahead, likewise: so that the next is there when it is waited for, and as many
	// as there is room for.
	aheadAlone   = 1
	aheadCrowded = pieces - 1
	arenaNap     = 20 * time.Millisecond // longest sleep before a look at the outside
	// The same while the system's MPI library has something to do that it does in calls only: at first, and at last.
	shortNap = 20 * time.Microsecond
	busyNap  = time.Millisecond
)

// raise lets a word of this rank's part grow to v, after all that was written before, and wakes the ranks that sleep for
// it. It also asks for the line of the slot that this rank writes next, which the others have read last: this rank waits
// for the others now anyway, and would otherwise wait for that line when it writes.
func (a *arena) raise(word int, v uint64) {
	w := &a.own[word]
	if a.fences {
		atomic.StoreUint64(w, v)
	} else {
		fence.Store(w, v)
		fence.Ahead(&a.own[slot(a.turn+1)])
	}
	if atomic.LoadUint64(&a.own[sleepers]) != 0 {
		futex(w, futexWake, 1<<30, nil)
	}
}

const (
	futexWait = 0 // FUTEX_WAIT and FUTEX_WAKE between processes
	futexWake = 1
)

// futex acts on the lower half of a word in memory that processes share.
func futex(word *uint64, op int, v uint32, timeout *unix.Timespec) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), uintptr(op), uintptr(v),
		uintptr(unsafe.Pointer(timeout)), 0, 0) // woken, timed out, interrupted or changed: the caller looks again
}

// rankSet is a set of the ranks of an arena, a bit for each.
type rankSet uint32

const maxRanks = 32 // in a set; no more than maxArena are asked for

func oneRank(r int) rankSet { return 1 << r }

// ranksFrom are those from first to before end.
func ranksFrom(first, end int) rankSet { return 1<<end - 1<<first }

func (set rankSet) has(r int) bool { return set>>(uint(r)%maxRanks)&1 == 1 }

// everybody is the set of all ranks.
func (a *arena) everybody() rankSet { return ranksFrom(0, len(a.parts)) }

// awaited is what a rank waits for in an arena: words of the same place in the parts of some ranks.
type awaited struct {
	parts []*part
	word  int
	least uint64
	of    rankSet
}

// missing adds to ranks those others whose word has not grown as far as it is waited for.
func (a *awaited) missing(ranks []int) []int {
	for r := range a.parts {
		if a.of.has(r) && !slices.Contains(ranks, r) && atomic.LoadUint64(&a.parts[r][a.word]) < a.least {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// reach waits until a word of a rank's part has grown to v. alike are the ranks that are waited for in the same way, one
// after the other, this one included.
func (m *meeting) reach(ctx context.Context, rank, word int, v uint64, alike rankSet) error {
	if m.near(rank, word, v) {
		return nil
	}
	return m.sleep(ctx, rank, word, v, alike)
}

// waits are the last waits for a rank, the newest in the lowest bit: 1 where it had not come yet.
//
// Two ranks that do one collective after the other come first by turns. The one that comes first looks for the other in vain,
// and so takes the line that the other is about to write. That store takes longer then, and the line has to cross once more.
// So the rank that came first leaves last, and comes last to the next collective. If it leaves a moment for the other to
// come before it looks, both leave at once, and come at once to those that follow. Among more ranks it does not: there a
// rank waits for one after the other, and would pause for each.
type waits uint8

// comesFirst reports whether this rank is likely to come first: it had to wait the last time but one, and not the last time.
func (w waits) comesFirst() bool { return w&3 == 2 }

// near waits as reach does, but gives up when it is time to sleep. It reports whether the word has grown.
func (m *meeting) near(rank, word int, v uint64) bool {
	w := &m.parts[rank][word]
	spins := m.spins
	if m.runsElsewhere(rank) {
		spins = spinsElsewhere
	}
	pause := &m.pauses[rank]
	if pause.Timed() && pause.Look(spins, func() bool { return atomic.LoadUint64(w) >= v }) {
		return true
	}
	for range spins {
		if atomic.LoadUint64(w) >= v {
			return true
		}
		pause.Pass()
	}
	for g := (osyield.Wait{}); (g.Yields < m.yields || m.comm.Progress()) && g.Lasts < yieldTime; {
		m.home.Yield(&g)
		if atomic.LoadUint64(w) >= v {
			return true
		}
	}
	return false
}

// runsElsewhere reports whether a rank is likely to be running on another core: if it is the only one that this rank needs, as
// the root of a broadcast is, which waits for nobody; else, if nobody needs this rank's core to come.
func (m *meeting) runsElsewhere(rank int) bool {
	return m.elsewhere.has(rank) && (m.entry.flow.needs == oneRank(rank) || m.matesCame())
}

// matesCame reports whether the other ranks of this one's core have come to the meeting. Until they have, others may wait
// for them, and they need the core to come.
func (m *meeting) matesCame() bool {
	for _, r := range m.mates {
		if atomic.LoadUint64(&m.parts[r][slot(m.turn)]) < m.turn {
			return false
		}
	}
	return true
}

// sleep is the slow part of reach: it sleeps in the kernel and looks up
// now and then, whether the rank is lost or the collective called off. Only now the look-out
// can see the meeting.
func (m *meeting) sleep(ctx context.Context, rank, word int, v uint64, alike rankSet) error {
	s := m.sleeper.state
	m.watch(rank, mpi.Request{}, awaited{m.parts, word, v, alike &^ oneRank(m.me)})
	defer m.unwatch()
	w := &m.parts[rank][word]
	count := &m.parts[rank][sleepers]
	atomic.AddUint64(count, 1)
	fence.Everywhere()
	defer atomic.AddUint64(count, ^uint64(0))
	shadow := m.comm.Shadow()
	for looks := 0; ; looks++ {
		now := atomic.LoadUint64(w)
		if now >= v {
			return nil
		}
		if b := s.broken.Load(); b != nil {
			return b.Err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if lost := shadow.Lost(); len(lost) > 0 {
			return s.nameLost(shadow, mpi.ErrPeerLost)
		}
		nap := arenaNap
		if m.comm.Progress() {
			nap = min(shortNap*time.Duration(1+looks/100), busyNap)
		}
		if at, ok := ctx.Deadline(); ok {
			nap = max(0, min(nap, time.Until(at)))
		}
		ts := unix.NsecToTimespec(int64(nap))
		futex(w, futexWait, uint32(now), &ts)
	}
}

// watch lets the look-out see the meeting, which waits for a rank, and for a request or words of the arena, until unwatch.
func (m *meeting) watch(rank int, r mpi.Request, words awaited) {
	x := m.sleeper
	x.mu.Lock()
	x.blocked, x.peer, x.awaited = r, int32(rank), words
	x.mu.Unlock()
	s := x.state
	s.mu.Lock()
	x.entry, x.seq, x.signature = m.entry, m.seq, m.signature
	x.progress.Add(1) // since it slept for something else
	s.watch.add(x)
	s.mu.Unlock()
}

func (m *meeting) unwatch() {
	s := m.sleeper.state
	s.mu.Lock()
	s.watch.remove(m.sleeper)
	s.mu.Unlock()
}

// finish waits for a message of the meeting, from or to a rank, or until the collective is called off.
func (m *meeting) finish(ctx context.Context, rank int, r mpi.Request) error {
	m.watch(rank, r, awaited{})
	defer m.unwatch()
	s := m.sleeper.state
	if s.broken.Load() != nil { // before the look-out could cancel it
		r.Cancel()
	}
	defer m.sleeper.until.end()
	_, err := r.Wait(m.sleeper.untilOff(ctx))
	if b := s.broken.Load(); b != nil && err != nil && !errors.Is(err, mpi.ErrInFlight) {
		return b.Err
	}
	return err
}
