package mpi

import (
	"context"
	"errors"
)

// Request names a send or receive under way. It is a small value: copying it
// copies the handle, not the operation. A request is spent by the Wait or Test
// that reports it finished, or still in flight (ErrInFlight); using it afterwards is ErrRequest, except for a send
// that had finished when Isend returned. The zero Request is the null request,
// finished with an empty status.
//
// The buffer of the operation belongs to the library until the request is reported finished. One goroutine at a time may
// wait for a request.
type Request struct {
	o   *op
	gen uint32
}

// sent is the op of all sends that had finished when Isend returned.
var sent = &op{phase: phaseFinished}

// nobody is the status of a receive from ProcNull, and nothing the op of such a receive.
var (
	nobody  = Status{Source: ProcNull, Tag: AnyTag}
	nothing = &op{phase: phaseFinished, preset: nobody}
)

// failed is a request that failed before it began.
func failed(s Status, err error) Request {
	return Request{o: &op{phase: phaseFinished, preset: s, err: err}}
}

// settled: nothing is under way; err says whether anything went wrong.
func (r Request) settled() (s Status, err error, ok bool) {
	switch {
	case r.o == nil:
		return Status{}, nil, true
	case r.o.dev == nil:
		return r.o.preset, r.o.err, true
	}
	return Status{}, nil, false
}

// Wait blocks until the operation has finished and returns its outcome. It
// makes progress for the whole world while it waits. When ctx ends first, the
// operation is given up: a message that was on its way into a receive's buffer is lost, and the message of a send is
// received whole or not at all. Wait then returns as soon as the buffer is free. If somebody may still touch the buffer
// after a moment, it returns ErrInFlight, and Error.Done says when the buffer is free.
func (r Request) Wait(ctx context.Context) (Status, error) {
	if s, err, ok := r.settled(); ok {
		return s, err
	}
	return r.o.dev.wait(ctx, r)
}

// Test makes some progress and reports whether the operation has finished; if
// so the request is spent.
func (r Request) Test() (Status, bool, error) {
	if s, err, ok := r.settled(); ok {
		return s, true, err
	}
	return r.o.dev.test(r)
}

// Cancel asks for the operation to be given up. The request must still be
// waited for: Wait reports ErrCancelled, or success where it is too late, as when a receive has begun to get
// its message. A cancelled send's message is received whole or, as far as receives can tell, was never sent.
func (r Request) Cancel() {
	if _, _, ok := r.settled(); !ok {
		r.o.dev.cancel(r)
	}
}

// Done returns a channel that is closed when the operation has finished. It
// allocates; use it to select among other events. Progress continues in the background.
func (r Request) Done() <-chan struct{} {
	if _, _, ok := r.settled(); ok {
		return closedChan
	}
	return r.o.dev.doneChan(r)
}

// Null reports whether r is the null request.
func (r Request) Null() bool { return r.o == nil }

// requestError is the error of requests whose communicator is not known, or that are of several.
func requestError(d device, what string, err error, detail string) error {
	return &Error{Op: what, Rank: d.worldRank(), Peer: ProcNull, Tag: AnyTag, Err: err, Detail: detail}
}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// WaitAll waits for all requests and sets them to null. It returns the first
// error in the order of rs, after all have finished: no buffer is in use any more unless
// the error is ErrInFlight. When ctx ends, the unfinished ones are given up, as by Wait.
func WaitAll(ctx context.Context, rs []Request) error {
	var first error
	for at := 0; at < len(rs); {
		n := 1
		_, err, ok := rs[at].settled()
		if !ok {
			n, err = rs[at].o.dev.waitSome(ctx, rs[at:])
		}
		if err != nil {
			first = worse(first, err)
		}
		at += n
	}
	clear(rs)
	return first
}

// worse chooses which of two errors the caller gets: the earlier one. But an ErrInFlight is never hidden by another error,
// and if both are ErrInFlight, Done covers both buffers.
func worse(first, err error) error {
	switch {
	case first == nil:
		return err
	case !errors.Is(err, ErrInFlight):
		return first
	case !errors.Is(first, ErrInFlight):
		return err
	}
	var a, b *Error
	if !errors.As(first, &a) || !errors.As(err, &b) {
		return first
	}
	both, done := *a, make(chan struct{})
	both.Done = done
	go func() {
		<-a.Done
		<-b.Done
		close(done)
	}()
	return &both
}

// giveUpAll ends the wait for requests of device d. It first asks back all that rs has, and then waits for each in turn, up
// to the first request of another device; all share one grace. It returns what waitSome does.
func giveUpAll(d device, rs []Request, askBack func(Request), takenBack func(grace context.Context, r Request) error) (int, error) {
	for _, r := range rs {
		if r.o != nil && r.o.dev == d {
			askBack(r)
		}
	}
	grace, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	var worst error
	for i, r := range rs {
		_, err, ok := r.settled()
		switch {
		case ok:
		case r.o.dev == d:
			err = takenBack(grace, r)
		default:
			return i, worst
		}
		worst = worse(worst, err)
	}
	return len(rs), worst
}

// WaitAny waits until one of the requests has finished, sets it to null and
// returns its index and outcome. Null requests are passed over; with none
// left the index is -1 and the error nil. When ctx ends first nothing is cancelled, the index is -1 and the error
// wraps ctx's cause. All that are under way must be of one world, else the error is ErrRequest, and nothing is waited for.
func WaitAny(ctx context.Context, rs []Request) (int, Status, error) {
	var dev device
	for i := range rs {
		if rs[i].Null() {
			continue
		}
		if s, err, ok := rs[i].settled(); ok {
			rs[i] = Request{}
			return i, s, err
		}
		if dev != nil && dev != rs[i].o.dev {
			return -1, Status{}, requestError(dev, "waitany", ErrRequest, "requests of two worlds")
		}
		dev = rs[i].o.dev
	}
	if dev == nil {
		return -1, Status{}, nil
	}
	i, status, err := dev.waitAny(ctx, rs)
	if i >= 0 {
		rs[i] = Request{}
	}
	return i, status, err
}
