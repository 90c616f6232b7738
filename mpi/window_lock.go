package mpi

import (
	"context"
	"fmt"
	"slices"
)

// LockMode says who else may hold a lock at the same time.
type LockMode uint8

const (
	LockShared    LockMode = iota // others who want it shared
	LockExclusive                 // nobody
)

// windowLocks is the lock of one part, kept by its owner and guarded by its
// engine's lock. Wishes are granted in the order in which they come.
type windowLocks struct {
	holder int         // rank that holds it exclusively, -1: none
	shared map[int]int // rank -> how often it holds it shared
	queue  []lockWish
}

type lockWish struct {
	rank  int
	mode  LockMode
	token uint64
}

// grants sends the answers to wishes: what the locks need of a Window, whatever its T.
type grants interface {
	grant(lockWish)
	refuse(lockWish)
}

func (w *Window[T]) grant(l lockWish)  { w.reply(l, windowAnswer) }
func (w *Window[T]) refuse(l lockWish) { w.reply(l, windowFailed) }

func (w *Window[T]) reply(l lockWish, code windowCode) {
	answer := windowHeader{code: code, token: l.token}
	if l.rank == w.c.rank {
		w.e.answered(w.e.rank, answer, nil)
		return
	}
	w.e.answer(int(w.c.group[l.rank]), w.id, answer, nil)
}

func (k *windowLocks) ask(g grants, l lockWish) {
	k.queue = append(k.queue, l)
	k.serve(g)
}

// serve grants what can be granted, first come first served.
func (k *windowLocks) serve(g grants) {
	for len(k.queue) > 0 {
		l := k.queue[0]
		if k.holder >= 0 || l.mode == LockExclusive && len(k.shared) > 0 {
			return
		}
		if l.mode == LockExclusive {
			k.holder = l.rank
		} else {
			if k.shared == nil {
				k.shared = make(map[int]int)
			}
			k.shared[l.rank]++
		}
		k.queue = k.queue[1:]
		g.grant(l)
	}
}

// refuse ends all wishes: the part leaves the window.
func (k *windowLocks) refuse(g grants) {
	for _, l := range k.queue {
		g.refuse(l)
	}
	k.queue = nil
}

// release takes back one lock of a rank, if it has one.
func (k *windowLocks) release(g grants, rank int) {
	switch {
	case k.holder == rank:
		k.holder = -1
	case k.shared[rank] > 1:
		k.shared[rank]--
	case k.shared[rank] == 1:
		delete(k.shared, rank)
	default:
		return
	}
	k.serve(g)
}

// lost implements anyWindow: a lost rank holds and wants no locks.
func (w *Window[T]) lost(world int) {
	rank := w.c.RankOf(world)
	if rank < 0 {
		return
	}
	w.locks.forget(rank)
	w.locks.serve(w)
}

func (k *windowLocks) forget(rank int) {
	if k.holder == rank {
		k.holder = -1
	}
	delete(k.shared, rank)
	var rest []lockWish
	for _, l := range k.queue {
		if l.rank != rank {
			rest = append(rest, l)
		}
	}
	k.queue = rest
}

// Lock blocks until this rank holds the lock of the target's part. It keeps
// other lockers out, not those who access the part without locking. The
// lock belongs to the rank, not to the goroutine; it is not reentrant if exclusive. If ctx ends the
// wait, the lock is given back should it have been granted. Locks of lost ranks are released.
func (w *Window[T]) Lock(ctx context.Context, target int, mode LockMode) error {
	if err := w.check("lock", target, 0, 0); err != nil {
		return err
	}
	if mode > LockExclusive {
		return w.c.fail("lock", target, AnyTag, ErrArgument, fmt.Sprintf("lock mode %d; there are LockShared (%d) and LockExclusive (%d)", mode, LockShared, LockExclusive))
	}
	if err := w.acquire(ctx, target, mode); err != nil {
		return w.c.failBy("lock", target, AnyTag, err)
	}
	return nil
}

// acquire is Lock of what has been checked.
func (w *Window[T]) acquire(ctx context.Context, target int, mode LockMode) error {
	e := w.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.freed.Load() { // since the check: a wish for the own part would now be neither granted nor refused
		return errWindowFreed
	}
	world := int(w.c.group[target])
	token, q := e.newQuestion(world, nil)
	defer delete(e.windows.questions, token)
	q.until = w.c // once c is revoked the holder cannot give the lock back
	var err error
	if target == w.c.rank {
		w.locks.ask(w, lockWish{rank: target, mode: mode, token: token})
	} else {
		h := windowHeader{code: windowLock, acc: Accumulation(mode), token: token}
		err = e.post(ctx, e.peer(world), h.header(w.id), nil)
	}
	if err == nil {
		if err = e.answerTo(ctx, q); err != nil && !q.failed {
			w.giveUp(target, token)
		}
	}
	if err == nil && w.freed.Load() { // since the wish: Release has not seen this lock
		w.giveBack(target)
		err = errWindowFreed
	}
	if err == nil {
		w.holds[target]++
	}
	return err
}

// giveBack gives back one lock that this rank has. The engine's lock is held.
func (w *Window[T]) giveBack(target int) {
	if target == w.c.rank {
		w.locks.release(w, target)
		return
	}
	w.e.tell(int(w.c.group[target]), w.id, windowHeader{code: windowUnlock}) // nobody waits for it to arrive
}

// giveUp takes back a wish that has been made. The engine's lock is held.
func (w *Window[T]) giveUp(target int, token uint64) {
	if target == w.c.rank {
		w.locks.cancel(w, target, token)
		return
	}
	w.e.tell(int(w.c.group[target]), w.id, windowHeader{code: windowCancel, token: token})
}

// cancel takes back a wish of a rank. A wish arrives before its cancelling, so if it is not in the queue it has been
// granted: then the rank's lock is released.
func (k *windowLocks) cancel(g grants, rank int, token uint64) {
	i := slices.IndexFunc(k.queue, func(l lockWish) bool { return l.rank == rank && l.token == token })
	if i < 0 {
		k.release(g, rank)
		return
	}
	k.queue = slices.Delete(k.queue, i, i+1)
	k.serve(g)
}

// Unlock gives back the lock of the target's part after all that this rank has done to the
// part has taken effect. It is ErrRequest if this rank does not hold the lock.
func (w *Window[T]) Unlock(ctx context.Context, target int) error {
	if err := w.Flush(ctx, target); err != nil {
		return err
	}
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	if w.holds[target] == 0 {
		return w.c.fail("unlock", target, AnyTag, ErrRequest, "the lock is not held")
	}
	w.holds[target]--
	w.giveBack(target)
	return nil
}
