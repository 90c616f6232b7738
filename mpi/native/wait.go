package native

import (
	"context"
	"errors"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/osyield"
)

// How long the polling goroutine spins (where every rank has a core, and where not), and how long it then gives the
// core to other ranks, before it sleeps in the kernel. Both are counted in polls, which take about 25 ns while it
// spins and 0.4 µs after that. MPI has no descriptor to sleep on, and a sleep costs at least 20 µs, so the second
// phase covers the transfer of a few megabytes.
const (
	spinsAlone   = 1024
	spinsCrowded = burst
	yieldPolls   = 2500
)

// burst is how often a waiting goroutine polls in one switch to C while it spins; one
// poll takes 20 to 60 ns, so that an answer mostly comes within the first burst.
const burst = 64

// plainPoll: one poll outside a burst costs as much as this many in one.
const plainPoll = 4

// parking is a goroutine that waits while another one polls for it.
type parking struct {
	wake chan struct{} // holds one token
	rs   []*Request
}

// Wait waits until r is complete and returns its result. At most one waiting goroutine
// polls; it tests the requests of all others and hands over when its own is done. When
// ctx ends first the error is its cause and the operation goes on: cancel it, or wait
// again. A request that is not started is complete, also one that a blocking call has given back meanwhile.
func (w *World) Wait(ctx context.Context, r *Request) (Status, error) {
	one := [1]*Request{r}
	switch _, err := w.wait(ctx, one[:]); err {
	case nil:
		return r.result, r.err
	case errNothing:
		return Status{}, nil
	default:
		return Status{}, err
	}
}

// WaitAny waits until one of rs is complete and returns its index; nil and never
// started requests count as never complete. Its own result is Status and Err of that
// request. With nothing to wait for it is an error.
func (w *World) WaitAny(ctx context.Context, rs []*Request) (int, error) {
	return w.wait(ctx, rs)
}

var errNothing = errors.New("native: no request to wait for")

// What pollAny has found where no request is complete.
const (
	pending = -1 // one is in flight
	nothing = -2 // none is in flight: none has been started, or blocking calls of other goroutines have given them back
)

// pollAny returns the index of a completed request, or else pending or nothing.
func pollAny(rs []*Request, tries uintptr) int {
	found := nothing
	for i, r := range rs {
		if r == nil || r.state == idle {
			continue
		}
		if r.poll(tries) {
			return i
		}
		found = pending
	}
	return found
}

// answer is what a wait returns for what pollAny has found, unless that is pending.
func answer(found int) (int, error) {
	if found == nothing {
		return -1, errNothing
	}
	return found, nil
}

func (w *World) wait(ctx context.Context, rs []*Request) (int, error) {
	w.lock()
	for {
		if i := pollAny(rs, 1); i != pending {
			if !w.leading {
				w.handOver()
			}
			w.mu.Unlock()
			return answer(i)
		}
		if err := ctx.Err(); err != nil {
			if !w.leading {
				w.handOver()
			}
			w.mu.Unlock()
			return -1, context.Cause(ctx)
		}
		if !w.leading {
			break
		}
		p := w.park(rs)
		w.mu.Unlock()
		select {
		case <-p.wake:
		case <-ctx.Done():
		}
		w.lock()
		w.unpark(p)
	}
	w.leading = true
	w.mu.Unlock()
	return w.lead(ctx, rs)
}

// lead polls for everybody until one of rs is complete, or none is in flight.
func (w *World) lead(ctx context.Context, rs []*Request) (int, error) {
	for i := 1; ; i++ {
		for spins := 0; w.wanted.Load() != 0 && spins < 200; spins++ {
			osyield.Yield() // someone wants to start an operation: let it have the lock
		}
		w.mu.Lock()
		tries := 1
		switch {
		case i >= w.spins:
		case len(rs) == 1 && len(w.parked) == 0:
			tries = burst
			i += burst - 1
		default:
			i += plainPoll - 1
		}
		k := pollAny(rs, uintptr(tries))
		over := k != pending
		if over || (tries > 1 || i&15 == 0) && ctx.Err() != nil {
			w.leading = false
			w.handOver()
			w.mu.Unlock()
			if over {
				return answer(k)
			}
			return -1, context.Cause(ctx)
		}
		if w.announces {
			w.advance()
		}
		if len(w.parked) > 0 && w.sweep() {
			i = 0
		}
		spent := i - w.spins
		w.mu.Unlock()
		if spent >= 0 {
			pause(spent)
		}
	}
}

// park lists the caller for the polling goroutine. The lock is held.
func (w *World) park(rs []*Request) *parking {
	var p *parking
	if n := len(w.unused); n > 0 {
		p, w.unused = w.unused[n-1], w.unused[:n-1]
	} else {
		p = &parking{wake: make(chan struct{}, 1)}
	}
	p.rs = append(p.rs[:0], rs...)
	w.parked = append(w.parked, p)
	return p
}

// unpark takes p off the list, if it still is there, and back for use. The lock is held.
func (w *World) unpark(p *parking) {
	for i, q := range w.parked {
		if q == p {
			w.drop(i)
			break
		}
	}
	select {
	case <-p.wake:
	default:
	}
	clear(p.rs)
	w.unused = append(w.unused, p)
}

func (w *World) drop(i int) {
	last := len(w.parked) - 1
	w.parked[i] = w.parked[last]
	w.parked[last] = nil
	w.parked = w.parked[:last]
}

// sweep polls for the parked goroutines and wakes those that need wait no longer.
func (w *World) sweep() bool {
	woke := false
	for i := len(w.parked) - 1; i >= 0; i-- {
		if p := w.parked[i]; pollAny(p.rs, 1) != pending {
			w.drop(i)
			p.wake <- struct{}{}
			woke = true
		}
	}
	return woke
}

// handOver wakes one parked goroutine, which then polls. The lock is held.
func (w *World) handOver() {
	if n := len(w.parked); n > 0 {
		p := w.parked[n-1]
		w.drop(n - 1)
		p.wake <- struct{}{}
	}
}

// wakeParked wakes the goroutine that waits for r, which has just been completed by
// somebody else. The lock is held.
func (w *World) wakeParked(r *Request) {
	for i, p := range w.parked {
		for _, q := range p.rs {
			if q == r {
				w.drop(i)
				p.wake <- struct{}{}
				return
			}
		}
	}
}

// Progress lets the library work on everything that is in flight, once, without
// waiting. Call it now and then from a rank that computes for long: most MPI libraries
// move large messages only inside calls.
func (w *World) Progress() {
	w.lock()
	defer w.mu.Unlock()
	w.calls--
	if w.closed {
		return
	}
	if w.announces {
		w.advance()
	}
	b := clib.Block{Fn: w.fn.iprobe}
	b.A[0] = uintptr(w.abi.anySource)
	b.A[1] = uintptr(w.abi.anyTag)
	b.A[2] = uintptr(w.comm.handle)
	b.A[3] = uintptr(unsafe.Pointer(&w.nudge.flag))
	b.A[4] = uintptr(unsafe.Pointer(&w.nudge.status))
	b.Call()
}

// Called reports whether the program itself makes progress: it waits in the library or, since the last Called, has
// called it other than by Progress. Where long messages are announced, calls do not count while a receive is in
// flight: not every call looks after the receives that nobody waits for.
func (w *World) Called() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	called := w.leading || w.calls != w.seen && !(w.announces && w.receiving())
	w.seen = w.calls
	return called
}

// receiving reports whether any receive is in flight. The lock is held.
func (w *World) receiving() bool {
	for r := w.active; r != nil; r = r.next {
		if r.op == opIrecv {
			return true
		}
	}
	return false
}
