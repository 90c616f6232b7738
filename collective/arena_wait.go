package collective

import (
	"context"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi"
)

const (
	arenaSpins  = 4000 // looks at a flag before the core is given away
	arenaYields = 20
	arenaNap    = 20 * time.Millisecond // longest sleep before a look at the outside
)

// raise lets a flag grow to v and wakes those who sleep for it.
func (a *arena) raise(flag int, v uint64) {
	words := a.parts[a.me][flag : flag+2]
	atomic.StoreUint64(&words[0], v)
	if atomic.LoadUint64(&words[asleep]) != 0 {
		futex(&words[0], futexWake, 1<<30, nil)
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

// reach waits until a rank's flag has grown to v.
func (x *execution) reach(ctx context.Context, rank, flag int, v uint64) error {
	words := x.arena.parts[rank][flag : flag+2]
	for range arenaSpins {
		if atomic.LoadUint64(&words[0]) >= v {
			return nil
		}
	}
	for range arenaYields {
		syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		if atomic.LoadUint64(&words[0]) >= v {
			return nil
		}
	}
	return x.sleepFor(ctx, rank, words, v)
}

// sleepFor is the slow part of reach: it sleeps in the kernel and looks up
// now and then, whether the rank is lost or the collective called off.
func (x *execution) sleepFor(ctx context.Context, rank int, words []uint64, v uint64) error {
	x.mu.Lock()
	x.peer = int32(rank)
	x.mu.Unlock()
	atomic.AddUint64(&words[asleep], 1)
	defer atomic.AddUint64(&words[asleep], ^uint64(0))
	for {
		now := atomic.LoadUint64(&words[0])
		if now >= v {
			return nil
		}
		if b := x.state.broken.Load(); b != nil {
			return b.Err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if lost := x.shadow.Lost(); len(lost) > 0 {
			return x.state.nameLost(x.shadow, mpi.ErrPeerLost)
		}
		nap := arenaNap
		if at, ok := ctx.Deadline(); ok {
			nap = max(0, min(nap, time.Until(at)))
		}
		ts := unix.NsecToTimespec(int64(nap))
		futex(&words[0], futexWait, uint32(now), &ts)
	}
}
