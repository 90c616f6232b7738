package native

import "context"

// Send sends buf to rank dst and waits until it may be changed again: until the library
// has copied it or the receiver has it. It allocates nothing. MPI cannot take a send
// back: when ctx ends first the error wraps [ErrBusy] and buf stays the library's; the
// request that the error carries tells when it is free.
func (c *Comm) Send(ctx context.Context, buf []byte, dst, tag int) error {
	w := c.world
	r := w.request()
	err := c.Isend(r, buf, dst, tag)
	if err == nil {
		_, err = w.Wait(ctx, r)
		if err != nil && r.InFlight() {
			return &InFlightError{Request: r, Cause: err}
		}
	}
	w.recycle(r)
	return err
}

// Recv receives into buf from rank src, or [AnySource], with the given tag, or
// [AnyTag], and waits for it. It allocates nothing. When ctx ends first the receive is
// cancelled; if the message had been matched by then it completes and the error is nil.
func (c *Comm) Recv(ctx context.Context, buf []byte, src, tag int) (Status, error) {
	w := c.world
	r := w.request()
	err := c.Irecv(r, buf, src, tag)
	if err == nil {
		_, err = w.Wait(ctx, r)
		if err != nil && r.InFlight() {
			err = w.giveUp(r, err)
		}
	}
	s := r.result
	w.recycle(r)
	return s, err
}

// giveUp cancels a receive or probe and waits for that. A matched message completes
// first; its sender is inside the library and need not do anything more.
func (w *World) giveUp(r *Request, cause error) error {
	if err := r.Cancel(); err != nil {
		return err
	}
	if _, err := w.Wait(context.Background(), r); err != nil {
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

// request takes a request from the pool.
func (w *World) request() *Request {
	w.lock()
	defer w.mu.Unlock()
	if n := len(w.pool); n > 0 {
		r := w.pool[n-1]
		w.pool = w.pool[:n-1]
		return r
	}
	return new(Request)
}

// recycle puts a request that is not in flight back.
func (w *World) recycle(r *Request) {
	w.lock()
	r.state = idle
	w.pool = append(w.pool, r)
	w.mu.Unlock()
}
