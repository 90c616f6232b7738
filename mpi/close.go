package mpi

import (
	"context"
	"maps"
	"slices"
)

// The end of a world, also while goroutines wait in calls on it: first nobody polls any more, then the providers
// end, and the operations whose memory they still held finish. What libraries keep with communicators is released last:
// it waits for the libraries' own calls, which may wait for such an operation.

// Close says goodbye: it blocks until every living rank has closed too, or
// ctx ends, so that no rank takes a peer's leaving for a loss. If ctx ends before all
// ranks have said goodbye, this rank leaves all the same, and the ranks of other processes that have not closed yet see it as
// lost. Until then operations of other goroutines go on. Those that have not finished by then, and all later ones, end
// with ErrClosed: their messages may have been delivered or not, and their buffers are the caller's again. A peer of
// this host that has been stopped in the middle of a copy is waited for a second; if it is continued later, it finishes
// the copy, into or out of such a buffer. A second Close is ErrClosed at once. Collective.
//
// The system's MPI library takes back receives and probes only. Sends and collectives that
// have not finished when all ranks have closed are waited for; if ctx ends first, Close returns
// an error, they go on in the library, and the process should exit.
func (w *World) Close(ctx context.Context) error {
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		return &Error{Op: "close", Rank: w.rank, Peer: ProcNull, Tag: AnyTag, Err: ErrClosed}
	}
	w.closing = true
	w.mu.Unlock()
	return w.dev.close(ctx)
}

// close implements device.
func (e *engine) close(ctx context.Context) error {
	e.mu.Lock()
	w := e.comms[0].world
	e.mu.Unlock()
	err := e.drain(ctx)
	if w.membership != nil {
		e.mu.Lock()
		e.closing = true
		e.mu.Unlock()
		if byeErr := w.membership.Bye(ctx); err == nil && byeErr != nil {
			err = byeErr
		}
	}
	comms := e.end()
	e.keeper.done.Wait()
	if w.membership != nil {
		w.membership.Close()
	}
	for _, p := range e.providers {
		if cerr := p.Close(); err == nil {
			err = cerr
		}
	}
	e.mu.Lock()
	e.finishAll(func(*op) bool { return true })
	e.windows.byID = nil
	e.mu.Unlock()
	for _, c := range comms {
		if c != c.shadow {
			c.release(ErrClosed)
		}
	}
	if e.set != nil {
		e.set.close()
	}
	if err != nil {
		return &Error{Op: "close", Comm: "world", Rank: e.rank, Peer: ProcNull, Tag: AnyTag, Err: err}
	}
	return nil
}

// drained is the condition that nothing waits to be handed to a provider.
type drained struct{ prober }

func (d *drained) met() bool { return len(d.e.backlog) == 0 }

func (e *engine) drain(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.await(ctx, &drained{prober{e: e}})
}

// unled is the condition that nobody polls, or copies with the lock released. Once the world has ended, nobody begins to.
type unled struct{ prober }

func (u *unled) met() bool { return u.e.leader == leaderNone && u.e.copying == 0 }

// end lets no operation begin any more and finishes all those under way, except where a provider still holds the memory
// or a copy is going on. It returns the communicators that there are, once nobody is inside a provider or copies any more.
func (e *engine) end() []*Comm {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closing, e.closed = true, true
	e.unread = nil // the rest of Close waits until their peers have read
	e.finishAll(e.takeBack)
	for e.match.first != nil {
		a := e.match.first
		e.release(a)
		e.recycle(a)
	}
	for _, p := range e.peers {
		if p != nil && p.lost == nil {
			p.markLost(ErrClosed)
		}
	}
	e.sighted()
	e.wakeParked()
	e.wake()
	_ = e.await(context.Background(), &unled{prober{e: e}}) // soon: a leader looks at closed after each poll
	e.keeper.release()
	return slices.Collect(maps.Values(e.comms))
}

// finishAll ends with ErrClosed all unfinished operations for which may is true.
func (e *engine) finishAll(may func(*op) bool) {
	for _, o := range e.ops.oldestFirst() {
		if o.underWay() && may(o) {
			o.exposed, o.busy = false, false
			e.finish(o, ErrClosed)
		}
	}
}

// takeBack takes an operation out of the queues and its memory from the provider. It reports false if the memory is still
// held, by the provider or by a copy.
func (e *engine) takeBack(o *op) bool {
	switch {
	case o.busy:
		return false
	case o.phase == phasePosted:
		e.unpost(o)
	case o.exposed:
		p := e.peer(int(o.peer))
		return p.memory.Withdraw(p.rank, o.key)
	}
	return true
}
