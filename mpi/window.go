package mpi

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/internal/memcopy"
)

// Window is memory of every member of a communicator that the others read and
// write without the owner's taking part (one-sided communication). Elements are
// named by their owner's rank and their index there.
//
// A member whose part lies in memory from Alloc is accessed directly by members
// on its host that share memory with it (Direct): Put and Get are plain copies,
// and numbers of 4 and 8 bytes, not complex, are accumulated by the processor's atomic
// instructions. Everything else goes by messages that the owner's world handles
// whenever it makes progress, also while the program computes.
//
// Methods may be called from any goroutine. What several members do to the same
// element at the same time has no defined outcome, except that Accumulate,
// CompareAndSwap and FetchAndOp are atomic for each element among themselves. What a
// Put or Accumulate did is certain to be seen by others after the next Fence, or after
// Flush or Unlock by its caller. The owner reads its part as ordinary memory
// after the Fence or after it has learned of the Flush.
type Window[T Elem] struct {
	c       *Comm
	e       *engine
	id      uint32
	part    []T
	lengths []int
	direct  [][]T // by rank: its part if in reach, own included; nil: it is reached by messages
	held    *heldMemory
	combine [accumulations]func(a, b T) T
	locks   windowLocks
	holds   []int // by rank: locks of this rank on its part, guarded by the engine's lock
	unmap   runtime.Cleanup
	posted  []posted // by rank
	freed   atomic.Bool
	inside  sync.WaitGroup // operations on parts as memory; none begins once freed is set, under the engine's lock
}

// posted counts the messages to a rank's part that have no answers of their own, and how many of these
// are known to have taken effect. Written with the engine's lock held.
type posted struct{ all, confirmed atomic.Uint64 }

func (p *posted) outstanding() bool { return p.all.Load() != p.confirmed.Load() }

// NewWindow makes a window in which buf is this rank's part. The parts may
// differ in length and be empty. buf is the caller's to read and write, and
// stays in the window until Free. Collective over c, which the window needs: after c.Free its
// operations are ErrClosed, and only Release is left. Windows need Fisterra's own
// transports: over the system's MPI library it is ErrTransport.
func NewWindow[T Elem](ctx context.Context, c *Comm, buf []T) (_ *Window[T], err error) {
	e, ok := c.dev.(*engine)
	if !ok || !e.caps().Windows {
		return nil, c.fail("window", ProcNull, AnyTag, ErrTransport, "windows need transports of Fisterra's own that carry payloads")
	}
	k := c.begin(collectiveWindow)
	defer func() { k.end(err) }()
	id, _, err := k.context(ctx)
	if err != nil {
		return nil, err
	}
	w := &Window[T]{c: c, e: e, id: id, part: buf, combine: combiners[T](),
		held:    &heldMemory{memory: &c.world.memory},
		lengths: make([]int, c.Size()), direct: make([][]T, c.Size()), posted: make([]posted, c.Size()), holds: make([]int, c.Size())}
	w.locks.holder = -1
	// A member that has heard from all may use the window at once: messages
	// must find it here before this rank is heard.
	if !e.addWindow(id, w) {
		return nil, c.fail("window", ProcNull, AnyTag, ErrClosed, "")
	}
	// A world that closes does not release the window, since goroutines may still read parts. They are unmapped when nobody
	// refers to the window any more.
	w.unmap = runtime.AddCleanup(w, (*heldMemory).release, w.held)
	p, err := k.shareParts(ctx, Bytes(buf), KindOf[T](), SizeOf[T](), w.held)
	if err != nil {
		w.Release()
		return nil, err
	}
	w.adopt(p)
	return w, nil
}

// adopt takes the members' parts into the window. The caller's own part is the slice that it gave.
func (w *Window[T]) adopt(p parts) {
	for r, mem := range p.direct {
		w.lengths[r] = p.lengths[r]
		if mem != nil {
			w.direct[r] = View[T](mem)
		}
	}
	w.direct[w.c.rank] = w.part
}

// Len is the length of a rank's part.
func (w *Window[T]) Len(rank int) int { return w.lengths[rank] }

// Direct reports whether this rank accesses a rank's part as memory.
func (w *Window[T]) Direct(rank int) bool { return rank == w.c.rank || w.Part(rank) != nil }

// Part is a rank's part as memory, the caller's own included; nil if it is not
// Direct. It is read and written under the rules of the window and must not be
// used after Free, nor after the world's Close.
func (w *Window[T]) Part(rank int) []T {
	if w.freed.Load() {
		return nil
	}
	return w.direct[rank]
}

// check looks at the arguments of an operation on n elements from at on.
func (w *Window[T]) check(op string, target, at, n int) error {
	_, here, err := w.enter(op, target, at, n)
	if here {
		w.inside.Done()
	}
	return err
}

// enter is check for an operation that can be done on memory. If the part is here, it returns the elements from at on, and
// Release waits until the caller has left by inside.Done.
func (w *Window[T]) enter(op string, target, at, n int) (part []T, here bool, err error) {
	switch {
	case target < 0 || target >= w.c.Size():
		return nil, false, w.c.fail(op, ProcNull, AnyTag, ErrRank, w.c.rankRange(target))
	case at < 0 || n > w.lengths[target]-at:
		return nil, false, w.c.fail(op, target, AnyTag, ErrTruncated, fmt.Sprintf("elements %d to %d of a part of %d", at, at+n, w.lengths[target]))
	}
	w.e.mu.Lock()
	if err = w.e.reachable(w.c, target); w.freed.Load() {
		err = errWindowFreed
	}
	if here = err == nil && w.Direct(target); here {
		part = w.direct[target][at:]
		w.inside.Add(1)
	}
	w.e.mu.Unlock()
	if err != nil {
		err = w.c.failBy(op, target, AnyTag, err)
	}
	return part, here, err
}

// reach says why a rank's part cannot be used.
func (w *Window[T]) reach(op string, target int) error {
	w.e.mu.Lock()
	err := w.e.reachable(w.c, target)
	w.e.mu.Unlock()
	if err != nil {
		return w.c.failBy(op, target, AnyTag, err)
	}
	return nil
}

// reachable says why a rank's part cannot be used. The lock is held.
func (e *engine) reachable(c *Comm, target int) error {
	e.calls++
	if err := e.broken(c); err != nil {
		return err
	}
	if world := int(c.group[target]); world != e.rank {
		return e.peer(world).lost
	}
	return nil
}

// Put writes src to the target's part from index at on. src is the caller's
// again when Put returns; Window says when others see the elements. Put blocks only while
// there is no room for the message. If ctx ends first, none, the first or all of the elements are written. Cost: one
// copy if Direct, else two.
func (w *Window[T]) Put(ctx context.Context, target, at int, src []T) error {
	part, here, err := w.enter("put", target, at, len(src))
	if err != nil {
		return err
	}
	if here {
		memcopy.Copy(Bytes(part), Bytes(src))
		w.inside.Done()
		return nil
	}
	return w.scatter(ctx, "put", target, windowPut, 0, at, src)
}

// Get reads elements of the target's part from index at on into dst. Cost: one
// copy if Direct, else a round trip and two copies. When ctx ends first, dst is
// the caller's again with undefined contents.
func (w *Window[T]) Get(ctx context.Context, target, at int, dst []T) error {
	part, here, err := w.enter("get", target, at, len(dst))
	if err != nil {
		return err
	}
	if here {
		memcopy.Copy(Bytes(dst), Bytes(part))
		w.inside.Done()
		return nil
	}
	return w.gather(ctx, target, at, dst)
}

// Accumulate combines src with elements of the target's part from index at
// on, atomically for each element. src is the caller's again when it returns. If ctx ends first, the operation may have
// taken effect on none, the first or all of the elements. Cost: an atomic instruction for each element if Direct and
// there are such instructions for T, else a message.
func (w *Window[T]) Accumulate(ctx context.Context, target, at int, src []T, op Accumulation) error {
	f, err := w.combiner("accumulate", target, op)
	if err != nil {
		return err
	}
	part, here, err := w.enter("accumulate", target, at, len(src))
	switch {
	case err != nil:
		return err
	case !here:
		return w.scatter(ctx, "accumulate", target, windowAccumulate, op, at, src)
	}
	done := w.alone(target, func() { accumulate(part, src, f) })
	w.inside.Done()
	if !done {
		return w.scatter(ctx, "accumulate", target, windowAccumulate, op, at, src)
	}
	return nil
}

// alone runs change, which changes elements of a part that is here, if that is atomic: because there are atomic instructions for T,
// or because the part is this rank's own, whose elements all others change under its engine's lock. Else it reports
// false: the change is to be made by the owner.
func (w *Window[T]) alone(target int, change func()) bool {
	switch {
	case lockFree[T]():
		change()
	case target == w.c.rank:
		w.e.mu.Lock()
		change()
		w.e.mu.Unlock()
	default:
		return false
	}
	return true
}

func (w *Window[T]) combiner(what string, target int, op Accumulation) (func(a, b T) T, error) {
	if op >= accumulations || w.combine[op] == nil {
		var zero T
		return nil, w.c.fail(what, target, AnyTag, ErrMismatch, fmt.Sprintf("%T has no %v", zero, op))
	}
	return w.combine[op], nil
}

// FetchAndOp combines value with one element of the target's part and returns
// what the element was, atomically. With AccNone it reads. If ctx ends first the operation may or may not have taken effect.
// Cost: as of Accumulate, and a round trip where that is a message.
func (w *Window[T]) FetchAndOp(ctx context.Context, target, at int, value T, op Accumulation) (T, error) {
	f, err := w.combiner("fetch", target, op)
	if err != nil {
		return value, err
	}
	return w.update(ctx, "fetch", target, at, windowFetch, op, []T{value}, func(a T) T { return f(a, value) })
}

// CompareAndSwap sets one element of the target's part to next if it is
// compare, and returns what it was, atomically. Floating-point numbers are compared by value.
// If ctx ends first the operation may or may not have taken effect. Cost: as of FetchAndOp.
func (w *Window[T]) CompareAndSwap(ctx context.Context, target, at int, compare, next T) (T, error) {
	return w.update(ctx, "swap", target, at, windowSwap, 0, []T{compare, next}, swap(compare, next))
}

func swap[T Elem](compare, next T) func(T) T {
	return func(a T) T {
		if a == compare {
			return next
		}
		return a
	}
}

// update changes one element, here or by message.
func (w *Window[T]) update(ctx context.Context, what string, target, at int, code windowCode, op Accumulation, args []T, f func(T) T) (T, error) {
	part, here, err := w.enter(what, target, at, 1)
	if err != nil {
		return args[0], err
	}
	if here {
		var was T
		done := w.alone(target, func() { was = change(&part[0], f) })
		w.inside.Done()
		if done {
			return was, nil
		}
	}
	was := make([]T, 1)
	err = w.ask(ctx, what, target, windowHeader{code: code, acc: op, at: at}, Bytes(args), Bytes(was))
	return was[0], err
}

// Flush blocks until all that this rank has done to the target's part so far has
// taken effect there.
func (w *Window[T]) Flush(ctx context.Context, target int) error {
	if err := w.check("flush", target, 0, 0); err != nil {
		return err
	}
	return w.flush(ctx, target)
}

// flush is Flush of a part that is in reach, also on a member that has released the window.
func (w *Window[T]) flush(ctx context.Context, target int) error {
	p := &w.posted[target]
	if !p.outstanding() {
		return nil
	}
	all := p.all.Load() // what other goroutines post from here on may leave after the question
	if err := w.ask(ctx, "flush", target, windowHeader{code: windowFlush}, nil, nil); err != nil {
		return err
	}
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	p.confirmed.Store(max(all, p.confirmed.Load()))
	return nil
}

// Fence blocks until all members have called it and all that any of them has
// done to the window before has taken effect. Collective.
func (w *Window[T]) Fence(ctx context.Context) (err error) {
	k := w.c.begin(collectiveFence)
	defer func() { k.end(err) }()
	for target := range w.c.Size() {
		if w.posted[target].outstanding() {
			if err := w.reach("flush", target); err != nil {
				return err
			}
			if err := w.flush(ctx, target); err != nil {
				return err
			}
		}
	}
	return k.barrier(ctx)
}

// Free ends the window. The parts are their owners' alone again. Collective; no lock
// may be held. If it fails on a member, calling it again is collective, too: all members do, also those where it has
// succeeded, since none knows how the others fared. Instead each member may call Release. Release is also what to
// defer, since a Free after one that succeeded would wait for all members again.
func (w *Window[T]) Free(ctx context.Context) error {
	if err := w.Fence(ctx); err != nil {
		return err
	}
	w.Release()
	return nil
}

// Release ends the window on this rank alone, also after an error or when the world is closed.
// Members that reach this rank's part directly keep it, even if this rank then gives the memory back by [Free].
// Messages of the others to the part are answered by an error, and so are members that wait for its lock. Locks that this
// rank holds are given back. Release waits for operations of other goroutines that read or write a part as memory. Not
// collective.
func (w *Window[T]) Release() {
	w.e.mu.Lock()
	if w.freed.Swap(true) {
		w.e.mu.Unlock()
		return
	}
	delete(w.e.windows.byID, w.id)
	if !w.e.closed {
		w.locks.refuse(w)
		for target, n := range w.holds {
			for range n {
				w.giveBack(target)
			}
		}
	}
	w.e.mu.Unlock()
	w.inside.Wait() // other goroutines may be copying
	w.unmap.Stop()
	w.held.release()
}
