package mpi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// opCollective is an operation of the library's own that is not a message.
const opCollective = opRecv + 1

// get takes an op for a new operation, with the library's request that
// belongs to it and is used again and again.
func (d *nativeDevice) get(kind opKind, c *Comm) (*op, *native.Request) {
	d.mu.Lock()
	var o *op
	if n := len(d.free); n > 0 {
		o = d.free[n-1]
		d.free = d.free[:n-1]
		o.gen++
	} else {
		o = &op{dev: d, index: uint32(len(d.all)), gen: 1, native: new(native.Request)}
		d.all = append(d.all, o)
	}
	o.kind, o.comm = kind, c
	d.mu.Unlock()
	return o, o.native.(*native.Request)
}

// put gives an op back whose request is not in flight, and reports false if
// that has been done already since gen.
func (d *nativeDevice) put(o *op, gen uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.gen != gen {
		return false
	}
	if o.done != nil { // somebody may still be waiting for the request: it is not used again
		o.native = new(native.Request)
	}
	o.gen++
	o.comm, o.buf, o.err, o.done, o.env, o.peer = nil, nil, nil, nil, envelope{}, 0
	d.free = append(d.free, o)
	return true
}

func (d *nativeDevice) worldRank() int { return d.user.Rank() }

// request is the library's request of r, or nil if r is spent.
func (d *nativeDevice) request(r Request) *native.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.o.gen != r.gen {
		return nil
	}
	return r.o.native.(*native.Request)
}

func (d *nativeDevice) wait(ctx context.Context, r Request) (Status, error) {
	n := d.request(r)
	if n == nil {
		return Status{}, spent(d, "wait")
	}
	s, over, err := d.outcome(ctx, n)
	if !over {
		return d.giveUp(ctx, r, n)
	}
	return d.collect(r, s, err)
}

// outcome waits for a library's request until ctx ends, and reports whether the request is over. Other waiting goroutines
// poll for the request, too. So it may be over although ctx has ended this wait: then the request's outcome counts.
func (d *nativeDevice) outcome(ctx context.Context, n *native.Request) (s native.Status, over bool, err error) {
	if s, err = d.lib.Wait(ctx, n); err == nil {
		return s, true, nil
	}
	if n.InFlight() {
		return s, false, err
	}
	return n.Status(), true, n.Err()
}

func (d *nativeDevice) test(r Request) (Status, bool, error) {
	n := d.request(r)
	if n == nil {
		return Status{}, true, spent(d, "test")
	}
	done, err := n.Test()
	if !done {
		return Status{}, false, nil
	}
	s, err := d.collect(r, n.Status(), err)
	return s, true, err
}

// collect takes the outcome of a finished operation and gives its op back.
func (d *nativeDevice) collect(r Request, s native.Status, err error) (Status, error) {
	status := d.status(s)
	if err != nil {
		err = d.describe(r.o, &status, err)
	}
	if !d.put(r.o, r.gen) {
		return Status{}, spent(d, "wait")
	}
	return status, err
}

// cancel holds the lock all the while: once r is spent, its library's request may belong to another operation.
func (d *nativeDevice) cancel(r Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.o.gen == r.gen {
		_ = r.o.native.(*native.Request).Cancel() // a send or a collective cannot be: it goes on
	}
}

// giveUp ends a wait whose context has ended. A receive is taken back. An operation that the library cannot take back
// has takeBackTime to finish, and else is left to the library.
func (d *nativeDevice) giveUp(ctx context.Context, r Request, n *native.Request) (Status, error) {
	d.cancel(r)
	longer, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	return d.takenBack(ctx, longer, r, n)
}

// takenBack waits until longer ends for a request whose wait ctx has ended.
func (d *nativeDevice) takenBack(ctx, longer context.Context, r Request, n *native.Request) (Status, error) {
	s, over, err := d.within(ctx, longer, n)
	if over {
		return d.collect(r, s, err)
	}
	err = d.leave(r.o, n, err)
	d.mu.Lock()
	r.o.native = new(native.Request)
	d.mu.Unlock()
	d.put(r.o, r.gen)
	return Status{}, err
}

// grace waits a little longer than ctx for a request, as within does.
func (d *nativeDevice) grace(ctx context.Context, r *native.Request) (s native.Status, over bool, err error) {
	longer, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	return d.within(ctx, longer, r)
}

// within waits for a request until longer ends, ctx having ended, and reports whether the request is over. Its error is
// ctx's cause where the request has been cancelled, or is still in flight.
func (d *nativeDevice) within(ctx, longer context.Context, r *native.Request) (s native.Status, over bool, err error) {
	s, over, err = d.outcome(longer, r)
	if !over || errors.Is(err, native.ErrCancelled) {
		err = context.Cause(ctx)
	}
	return s, over, err
}

// leave is the error of an operation that nobody waits for any more although
// the library still has its buffer. Progress goes on in the background.
func (d *nativeDevice) leave(o *op, r *native.Request, cause error) error {
	done := make(chan struct{})
	go func() {
		_, _ = d.lib.Wait(context.Background(), r) // its outcome has no owner
		close(done)
	}()
	err := d.describe(o, &Status{}, fmt.Errorf("%w: %w", ErrInFlight, cause))
	var at *Error
	if errors.As(err, &at) {
		at.Done = done
	}
	return err
}

// letGo implements device.
func (d *nativeDevice) letGo(r Request) {
	if _, done, _ := d.test(r); !done {
		go func() { _, _ = d.wait(context.Background(), r) }() // somebody has to give the op back
	}
}

func (d *nativeDevice) doneChan(r Request) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := r.o
	if o.gen != r.gen {
		return closedChan
	}
	if o.done == nil {
		done, n := make(chan struct{}), o.native.(*native.Request)
		o.done = done
		go func() {
			_, _ = d.lib.Wait(context.Background(), n) // whoever waits for the request gets its outcome
			close(done)
		}()
	}
	return o.done
}

// fewRequests is how many requests WaitAny takes without allocating.
const fewRequests = 32

func (d *nativeDevice) waitSome(ctx context.Context, rs []Request) (int, error) {
	n := d.request(rs[0])
	if n == nil {
		return 1, spent(d, "wait")
	}
	if s, over, err := d.outcome(ctx, n); over {
		_, err = d.collect(rs[0], s, err)
		return 1, err
	}
	return giveUpAll(d, rs, d.cancel, func(longer context.Context, r Request) error {
		n := d.request(r)
		if n == nil {
			return spent(d, "wait")
		}
		_, err := d.takenBack(ctx, longer, r, n)
		return err
	})
}

func (d *nativeDevice) waitAny(ctx context.Context, rs []Request) (int, Status, error) {
	var few [fewRequests]*native.Request
	ns := few[:0]
	d.mu.Lock()
	for i, r := range rs {
		switch {
		case r.o == nil || r.o.dev != device(d):
			ns = append(ns, nil)
		case r.o.gen != r.gen:
			d.mu.Unlock()
			return i, Status{}, spent(d, "waitany")
		default:
			ns = append(ns, r.o.native.(*native.Request))
		}
	}
	d.mu.Unlock()
	i, err := d.lib.WaitAny(ctx, ns)
	if err != nil {
		return -1, Status{}, requestError(d, "waitany", err, "")
	}
	s, err := d.collect(rs[i], ns[i].Status(), ns[i].Err())
	return i, s, err
}

// revokePending ends the receives that are posted on c.
func (d *nativeDevice) revokePending(c *Comm) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.all {
		if o.gen&1 == 1 && o.comm == c && o.kind == opRecv {
			o.err = ErrRevoked
			_ = d.lib.Cancel(o.native.(*native.Request))
		}
	}
}

// Pauses between two looks of the keeper: with operations under way, without any, and without any while the
// program calls the library itself.
const (
	nativeTick      = 2 * time.Millisecond
	nativeIdleTick  = 10 * time.Millisecond
	nativeCallsTick = 100 * time.Millisecond
)

// busy reports whether any operation is under way.
func (d *nativeDevice) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.free) < len(d.all)
}

// progress lets the library work once if anything is under way, for a rank that waits outside the library.
func (d *nativeDevice) progress() (busy bool) {
	if busy = d.busy(); busy {
		d.lib.Progress()
	}
	return busy
}

// keep lets the library work while the program computes: most libraries move
// messages only inside calls. A look takes a core, perhaps from another rank, for some 0.1 ms, so looks are few where
// nothing is to be gained.
func (d *nativeDevice) keep() {
	defer d.stopped.Done()
	next := time.NewTimer(nativeIdleTick)
	defer next.Stop()
	for {
		select {
		case <-d.closing:
			return
		case <-next.C:
		}
		called := d.lib.Called()
		if !called {
			d.lib.Progress()
		}
		switch {
		case d.busy():
			next.Reset(nativeTick)
		case called:
			next.Reset(nativeCallsTick)
		default:
			next.Reset(nativeIdleTick)
		}
	}
}
