// Package biased is a lock for data that one goroutine uses nearly always and others now and then.
package biased

import (
	"sync"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/internal/fence"
)

// Mutex is a sync.Mutex that comes to belong to a goroutine which takes it again and again: from then on taking it and giving
// it back are plain stores. A short message takes and gives back locks twice on its way. A locked instruction not only takes
// as long as dozens of others, but also waits until all earlier stores have left the processor, among them those of a message
// to another one.
//
// Another goroutine that wants the lock takes it away from its owner. It says so, and runs a fence on all processors of this
// process. After the fence, either it sees that the owner is inside, or the owner sees that it owns nothing any more. Then it
// waits until the owner is outside. That takes some µs. The lock is an ordinary one until a goroutine has taken it ownAfter
// times in a row, so that this costs no more than what ownership saves (Kawachiya, Koseki, Onodera, "Lock Reservation: Java
// Locks Can Mostly Do Without Atomic Operations", OOPSLA 2002; the fence in place of stopping the owner: Dice, Huang, Yang,
// "Asymmetric Dekker Synchronization", 2001).
//
// The zero Mutex is an unlocked ordinary one, which nobody will own before Favour. The goroutine that unlocks it must be the
// one that locked it. Under the race detector, which sees none of this, and on processors other than amd64 it stays ordinary.
type Mutex struct {
	owned atomic.Pointer[claim] // nil: nobody's

	// These belong to whoever has the lock.
	by       *claim // the claim by which it was taken last: its owner's, or ordinary
	ordinary claim  // of all who take it by way of mu: it is always lost, so that Unlock goes the long way
	last     *claim // of the last owner, who may be inside after it has lost the lock
	claims   []*claim
	oldest   int // index of the claim that the next one replaces
	streak   int // acquisitions in a row by taker, by way of mu
	taker    uintptr

	favours bool
	waiting atomic.Int32 // callers that have to wait for the lock
	mu      sync.Mutex
}

// claim is what a goroutine owns a lock by. It never becomes another goroutine's: its owner may be about to enter long after
// it has lost the lock, and then sets inside, and takes that back, without looking whose claim it is.
type claim struct {
	of     *Mutex
	owner  uintptr
	inside uint64 // 1 while the owner has the lock
	lost   uint64 // 1 once the lock is not the owner's any more
	out    chan struct{}
}

const (
	// ownAfter is after how many acquisitions in a row the lock belongs to the goroutine that made them.
	ownAfter = 512
	// mostClaims are remembered, so that goroutines which own the lock by turns need no new ones.
	mostClaims = 64
)

// Favour lets goroutines own the lock, if the system has the fence that it takes (membarrier, Linux 4.14). It is called before the lock is used.
func (m *Mutex) Favour() { m.favours = fence.RegisterHere() }

// Lock takes the lock, and waits for it if need be.
func (m *Mutex) Lock() { lock(m) }

// lockLate is Lock for a goroutine that has lost the lock just now, with its claim: others may have seen it inside, where it
// is not any more.
//
//lint:ignore U1000 the assembly of lock goes on here
func lockLate(c *claim) {
	c.left()
	lockOrdinary(c.of)
}

// lockOrdinary is Lock for goroutines that do not own the lock.
//
//lint:ignore U1000 the assembly of lock goes on here
func lockOrdinary(m *Mutex) {
	if m.TryLock() {
		return
	}
	m.waiting.Add(1)
	m.mu.Lock()
	for !m.dispossess() {
		<-m.last.out
	}
	m.took()
	m.waiting.Add(-1)
}

// Wanted reports whether anybody waits for the lock.
func (m *Mutex) Wanted() bool { return m.waiting.Load() > 0 }

// TryLock takes the lock unless somebody has it. Its callers are in no hurry: it takes the lock away from the owner, even
// where that is the caller.
func (m *Mutex) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	if !m.dispossess() {
		m.mu.Unlock()
		return false
	}
	m.took()
	return true
}

// Unlock gives the lock back. Its owner's way is short enough to become a part of the caller.
func (m *Mutex) Unlock() {
	c := m.by
	c.inside = 0 // after all stores before, as by fence.Store
	if atomic.LoadUint64(&c.lost) != 0 {
		m.unlock(c)
	}
}

// unlock is Unlock for goroutines that do not own the lock, or do not any more.
func (m *Mutex) unlock(c *claim) {
	if c != &m.ordinary {
		c.left()
		return
	}
	if m.streak >= ownAfter && m.favours {
		m.own()
	}
	m.mu.Unlock()
}

// dispossess, with mu held, leaves the lock without an owner, and reports whether its last owner is outside.
func (m *Mutex) dispossess() bool {
	if c := m.owned.Load(); c != nil {
		atomic.StoreUint64(&c.lost, 1)
		m.owned.Store(nil)
		fence.Here()
	}
	return m.last == nil || atomic.LoadUint64(&m.last.inside) == 0
}

// took notes who has taken the lock by way of mu.
func (m *Mutex) took() {
	m.by, m.ordinary.lost = &m.ordinary, 1
	if g := goroutine(); g != m.taker {
		m.taker, m.streak = g, 0
	}
	m.streak++
}

// own makes the lock its taker's.
func (m *Mutex) own() {
	m.streak = 0
	if m.taker == 0 {
		return
	}
	m.last = m.claimOf(m.taker)
	m.by = m.last
	atomic.StoreUint64(&m.last.lost, 0)
	m.owned.Store(m.last)
}

// claimOf is a goroutine's claim: the one it had, if it is remembered.
func (m *Mutex) claimOf(owner uintptr) *claim {
	for _, c := range m.claims {
		if c.owner == owner {
			return c
		}
	}
	c := &claim{of: m, owner: owner, out: make(chan struct{}, 1)}
	if len(m.claims) < mostClaims {
		m.claims = append(m.claims, c)
	} else {
		m.claims[m.oldest] = c
		m.oldest = (m.oldest + 1) % mostClaims
	}
	return c
}

// left tells whoever waits for it that the owner is outside.
func (c *claim) left() {
	select {
	case c.out <- struct{}{}:
	default:
	}
}
