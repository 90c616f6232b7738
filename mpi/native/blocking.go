package native

import (
	"context"
	"errors"
)

// Send sends buf to rank dst and waits until it may be changed again: until the library
// has copied it or the receiver has it. It allocates nothing. MPI cannot take a send
// back: when ctx ends first the error wraps [ErrBusy] and buf stays the library's; the
// request that the error carries tells when it is free.
func (c *Comm) Send(ctx context.Context, buf []byte, dst, tag int) error {
	if !c.valid(dst, tag, 0, 0) {
		return c.mistake(opIsend, dst, tag, 0, 0)
	}
	w := c.world
	if !w.mu.TryLock() { // lock, without a call
		w.lockLater()
	}
	w.calls++
	var r *Request
	var err error
	if w.briefly(len(buf)) && !c.announced(len(buf), dst) {
		b := &w.sends
		r = b.begin(opIsend, buf, dst)
		empty, asks := w.abi.requestEmpty, uintptr(1)
		if empty != 0 { // the request itself tells
			asks = 0
		}
		b.carry(r.buf, r.bytes, c.peer(dst), uintptr(tag), c.handle, asks)
		b.CallBrief()
		if b.answered() || empty != 0 && b.sentAtOnce(empty) {
			b.end()
			w.mu.Unlock()
			return nil
		}
		if r, err = b.leave(c, tag, asks != 0); err == nil && asks == 0 {
			r.poll(1)
		}
	} else {
		r = w.request()
		err = c.isend(r, buf, dst, tag)
	}
	if err != nil || r.state == complete {
		return w.retire(r, err)
	}
	w.mu.Unlock()
	one := [1]*Request{r}
	if _, err := w.wait(ctx, one[:]); err != nil {
		return &InFlightError{Request: r, Cause: err}
	}
	w.lock()
	return w.retire(r, nil)
}

// Recv receives into buf from rank src, or [AnySource], with the given tag, or [AnyTag], and waits for it. It
// allocates nothing. When ctx ends first the receive is cancelled. If its message had been matched by then, it
// completes and the error is nil; if that takes longer than one look, the error wraps [ErrBusy] as Send's does.
func (c *Comm) Recv(ctx context.Context, buf []byte, src, tag int) (Status, error) {
	if !c.valid(src, tag, AnySource, AnyTag) {
		return Status{}, c.mistake(opIrecv, src, tag, AnySource, AnyTag)
	}
	w := c.world
	if !w.mu.TryLock() { // lock, without a call
		w.lockLater()
	}
	w.calls++
	tries := uintptr(burst)
	if w.leading || w.wanted.Load() != 0 {
		tries = 1
	}
	var r *Request
	var err error
	if w.briefly(len(buf)) && len(c.met) == 0 {
		b := &w.receives
		r = b.begin(opIrecv, buf, src)
		at, bytes := r.buf, r.bytes
		if w.announces && src != ProcNull {
			at, bytes = r.awaitNotice(c)
		}
		b.carry(at, bytes, c.peer(src), c.tag(tag), c.handle, tries)
		b.CallBrief()
		if b.answered() {
			if s := w.readStatus(r); !r.awaits || r.unannounced(buf, s.Bytes) {
				b.end()
				w.mu.Unlock()
				return s, nil
			}
		}
		r, err = b.leave(c, tag, true)
	} else {
		r = w.request()
		err = c.irecv(r, buf, src, tag, tries)
	}
	if err != nil || r.state == complete {
		s := r.result
		return s, w.retire(r, err)
	}
	w.mu.Unlock()
	one := [1]*Request{r}
	var gaveUp error
	if _, err := w.wait(ctx, one[:]); err != nil {
		if gaveUp = giveUp(r, err); errors.Is(gaveUp, ErrBusy) {
			return Status{}, gaveUp
		}
	}
	w.lock()
	s := r.result
	return s, w.retire(r, gaveUp)
}

// giveUp cancels a receive. If the library refuses to cancel it, it stays in flight, like one that has been
// matched: it completes only when its sender is inside the library. How long to wait for that is left to the
// caller.
func giveUp(r *Request, cause error) error {
	_ = r.Cancel()
	done, err := r.Test()
	switch {
	case !done:
		return &InFlightError{Request: r, Cause: cause}
	case errors.Is(err, ErrCancelled):
		return cause
	}
	return nil
}

// InFlightError says that a wait ended although the library still holds the buffer.
type InFlightError struct {
	Request *Request // to wait for, or test, until the buffer is free
	Cause   error
}

func (e *InFlightError) Error() string {
	return e.Request.fail(0, ErrBusy, e.Cause.Error()).Error()
}

func (e *InFlightError) Unwrap() []error { return []error{ErrBusy, e.Cause} }

// request takes a request from the pool. The lock is held.
func (w *World) request() *Request {
	if n := len(w.pool); n > 0 {
		r := w.pool[n-1]
		w.pool = w.pool[:n-1]
		return r
	}
	return new(Request)
}

// retire puts a request that is not in flight back into the pool, unlocks, and returns err, or the request's own
// error.
func (w *World) retire(r *Request, err error) error {
	if err == nil {
		err = r.err
	}
	r.state = idle
	w.pool = append(w.pool, r)
	w.mu.Unlock()
	return err
}
