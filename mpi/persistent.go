package mpi

import (
	"context"
	"errors"
)

// Persistent is a send or receive that is started again and again with the
// same arguments. Not for use by two goroutines at once.
type Persistent struct {
	c      *Comm
	start  func() Request
	active Request
	busy   *Error // of a Wait or Test that left the buffer in flight
}

// SendInit prepares a send of buf; each Start sends its contents of that moment. Between Start and Wait buf is the
// library's. Mistakes in the arguments are reported by Wait.
func SendInit[T Elem](c *Comm, buf []T, dst, tag int) *Persistent {
	b := Bytes(buf)
	return &Persistent{c: c, start: func() Request { return c.isend(b, dst, tag) }}
}

// RecvInit prepares a receive into buf, which is the library's between Start and Wait. Mistakes in the arguments are
// reported by Wait.
func RecvInit[T Elem](c *Comm, buf []T, src, tag int) *Persistent {
	b := Bytes(buf)
	return &Persistent{c: c, start: func() Request { return c.irecv(b, src, tag) }}
}

// Start begins the operation. It does not block and does not allocate. It is
// ErrRequest while the last start has not been waited for, and ErrInFlight while a peer may still touch the buffer
// because of it.
func (p *Persistent) Start() error {
	if !p.active.Null() {
		return p.c.fail("start", ProcNull, AnyTag, ErrRequest, "the previous start has not been waited for")
	}
	if p.busy != nil {
		select {
		case <-p.busy.Done:
			p.busy = nil
		default:
			return p.busy
		}
	}
	p.active = p.start()
	return nil
}

// Wait waits for the operation that Start began; without one it returns at once.
func (p *Persistent) Wait(ctx context.Context) (Status, error) {
	r := p.active
	p.active = Request{}
	s, err := r.Wait(ctx)
	p.ended(err)
	return s, err
}

// Test makes some progress and reports whether the operation that Start began has finished, and with what outcome; then it
// may be started again. Without one it reports the empty status at once.
func (p *Persistent) Test() (Status, bool, error) {
	s, done, err := p.active.Test()
	if done {
		p.active = Request{}
		p.ended(err)
	}
	return s, done, err
}

// Cancel asks for the operation that Start began to be given up, as Request.Cancel does; Wait or Test must still
// report it. Without one it does nothing.
func (p *Persistent) Cancel() { p.active.Cancel() }

func (p *Persistent) ended(err error) {
	if errors.Is(err, ErrInFlight) {
		errors.As(err, &p.busy)
	}
}
