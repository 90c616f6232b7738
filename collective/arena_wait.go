package collective

import (
	"context"
	"errors"
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
	// core and when there are more ranks than cores: 20 µs and 0.1 µs.
	spinsAlone   = 4000
	spinsCrowded = 20
	// Yields before it sleeps, likewise: about 40 µs and 1 ms.
	yieldsAlone   = 100
	yieldsCrowded = 1000
	// Steps shown ahead, likewise: so that the next is there when it is waited for, and as many
	// as there is room for.
	aheadAlone   = 1
	aheadCrowded = pieces - 1
	arenaNap     = 20 * time.Millisecond // longest sleep before a look at the outside
)

// raise lets a word of this rank's part grow to v, after all that was written
// before, and wakes those who sleep for it.
func (a *arena) raise(word int, v uint64) {
	part := a.parts[a.me]
	if a.fences {
		atomic.StoreUint64(&part[word], v)
	} else {
		fence.Store(&part[word], v)
	}
	if atomic.LoadUint64(&part[sleepers]) != 0 {
		futex(&part[word], futexWake, 1<<30, nil)
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

// reach waits until a word of a rank's part has grown to v.
func (m *meeting) reach(ctx context.Context, rank, word int, v uint64) error {
	w := &m.parts[rank][word]
	if atomic.LoadUint64(w) >= v { // which says nothing of who shares a core: see osyield.Home
		return nil
	}
	for range m.spins {
		if atomic.LoadUint64(w) >= v {
			m.home.Alone()
			return nil
		}
	}
	for i := range m.yields {
		osyield.Yield()
		if atomic.LoadUint64(w) >= v {
			if i == 0 {
				m.home.Shared()
			}
			return nil
		}
	}
	return m.sleep(ctx, rank, w, v)
}

// sleep is the slow part of reach: it sleeps in the kernel and looks up
// now and then, whether the rank is lost or the collective called off. Only now the look-out
// can see the meeting.
func (m *meeting) sleep(ctx context.Context, rank int, w *uint64, v uint64) error {
	s := m.sleeper.state
	defer m.watched(rank, mpi.Request{})()
	count := &m.parts[rank][sleepers]
	atomic.AddUint64(count, 1)
	fence.Everywhere()
	defer atomic.AddUint64(count, ^uint64(0))
	shadow := m.comm.Shadow()
	for {
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
		if at, ok := ctx.Deadline(); ok {
			nap = max(0, min(nap, time.Until(at)))
		}
		ts := unix.NsecToTimespec(int64(nap))
		futex(w, futexWait, uint32(now), &ts)
	}
}

// watched lets the look-out see the meeting, which waits for a rank and a request, or none, until hide is called.
func (m *meeting) watched(rank int, r mpi.Request) (hide func()) {
	x := m.sleeper
	x.mu.Lock()
	x.blocked, x.peer = r, int32(rank)
	x.mu.Unlock()
	s := x.state
	s.mu.Lock()
	x.entry, x.seq = m.entry, m.seq
	x.progress.Add(1) // since it slept for something else
	s.watch.add(x)
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.watch.remove(x)
		s.mu.Unlock()
	}
}

// finish waits for a message of the meeting, from or to a rank, or until the collective is called off.
func (m *meeting) finish(ctx context.Context, rank int, r mpi.Request) error {
	defer m.watched(rank, r)()
	s := m.sleeper.state
	if s.broken.Load() != nil { // before the look-out could cancel it
		r.Cancel()
	}
	_, err := r.Wait(ctx)
	if b := s.broken.Load(); b != nil && err != nil && !errors.Is(err, mpi.ErrInFlight) {
		return b.Err
	}
	return err
}
