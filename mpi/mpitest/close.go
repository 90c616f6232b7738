package mpitest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// checkClose: the world closes while goroutines wait in calls on it and others are busy
// there. All of them, and all later calls, end with ErrClosed and say what they were. The
// ranks close the world themselves, so each check needs one of its own.
func checkClose(ctx context.Context, c *mpi.Comm) error {
	right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	const silent = 1 // a tag on which nothing is received
	recv := func(src, tag int) error {
		_, err := mpi.Recv(ctx, c, make([]byte, 8), src, tag)
		return err
	}
	waits := []closing{
		{"recv", func() error { return recv(right, silent) }},
		{"recv", func() error { return recv(c.Rank(), silent) }},
		{"recv", func() error { return wait(ctx, mpi.Irecv(c, make([]byte, 8), left, silent)) }},
		{"probe", func() error { _, err := c.Probe(ctx, left, silent); return err }},
		{"recv", func() error {
			r := mpi.Irecv(c, make([]byte, 8), right, silent)
			select {
			case <-r.Done():
			case <-ctx.Done():
			}
			return wait(ctx, r)
		}},
		{"recv", func() error {
			_, _, err := mpi.WaitAny(ctx, []mpi.Request{mpi.Irecv(c, make([]byte, 8), left, silent), mpi.Irecv(c, make([]byte, 8), right, silent)})
			return err
		}},
	}
	const busyTag = 100
	for g := range 4 {
		waits = append(waits, closing{"", func() error { // a send or a receive
			out, in := make([]byte, 8), make([]byte, 8)
			for {
				if _, err := mpi.Sendrecv(ctx, c, out, right, busyTag+g, in, left, busyTag+g); err != nil {
					return err
				}
			}
		}})
	}
	if c.Caps().CancelsSends {
		waits = append(waits,
			closing{"send", func() error { return mpi.Send(ctx, c, make([]byte, 1<<20), right, silent+1) }},
			closing{"send", func() error { return wait(ctx, mpi.Isend(c, make([]byte, 1<<20), c.Rank(), silent+2)) }})
		if c.Rank() == 0 {
			waits = append(waits, closing{"", func() error { _, err := c.Split(ctx, 0, 0); return err }})
		}
	}
	calls := make([]func() error, len(waits))
	for i, k := range waits {
		calls[i] = k.call
	}
	w := c.World()
	twin, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	var kept []*keepsake
	for _, of := range []*mpi.Comm{c, c.Shadow(), twin, twin.Shadow()} {
		kept = append(kept, of.Attribute(&keepsakes, func() any { return &keepsake{} }).(*keepsake))
	}
	ended, err := CloseAmid(ctx, w, calls)
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	for i, k := range kept {
		if len(k.released) != 1 || !errors.Is(k.released[0], mpi.ErrClosed) {
			return fmt.Errorf("what is kept with communicator %d was released with %v, want once, with ErrClosed", i, k.released)
		}
	}
	for i, k := range waits {
		if err := k.ended("waiting", ended[i]); err != nil {
			return err
		}
	}
	small := make([]byte, 8)
	for _, later := range []closing{
		{"send", func() error { return mpi.Send(ctx, c, small, right, 0) }},
		{"recv", func() error { return recv(left, 0) }},
		{"recv", func() error { return recv(mpi.AnySource, mpi.AnyTag) }},
		{"send", func() error { return wait(ctx, mpi.Isend(c, small, right, 0)) }},
		{"recv", func() error { return wait(ctx, mpi.Irecv(c, small, left, 0)) }},
		{"probe", func() error { _, err := c.Probe(ctx, left, 0); return err }},
		{"probe", func() error { _, _, err := c.Iprobe(left, 0); return err }},
		{"", func() error { _, err := c.Dup(ctx); return err }},
		{"close", func() error { return w.Close(ctx) }},
	} {
		if err := later.ended("later", later.call()); err != nil {
			return err
		}
	}
	return nil
}

// keepsake is what a library keeps with a communicator, under the key keepsakes.
type keepsake struct{ released []error }

var keepsakes mpi.Keyval

func (k *keepsake) Release(why error) { k.released = append(k.released, why) }

// CloseAmid closes a world once a goroutine for each of the calls has begun, waits until all of
// them have returned, and reports what each of them and the closing returned.
func CloseAmid(ctx context.Context, w *mpi.World, calls []func() error) (ended []error, closed error) {
	ended = make([]error, len(calls))
	var begun, returned sync.WaitGroup
	begun.Add(len(calls))
	for i, call := range calls {
		returned.Go(func() {
			begun.Done()
			ended[i] = call()
		})
	}
	begun.Wait()
	closed = w.Close(ctx)
	returned.Wait()
	return ended, closed
}

// closing is a call that the end of the world ends.
type closing struct {
	op   string // as errors name it; "": one of several
	call func() error
}

// ended reports what is wrong with how the call ended.
func (k closing) ended(when string, err error) error {
	var at *mpi.Error
	if !errors.Is(err, mpi.ErrClosed) || !errors.As(err, &at) || k.op != "" && at.Op != k.op {
		return fmt.Errorf("%s %s ended with %w", when, k.op, err)
	}
	return nil
}

// closeWorld closes a world unless the ranks have done so.
func closeWorld(ctx context.Context, w *mpi.World) error {
	if err := w.Close(ctx); !errors.Is(err, mpi.ErrClosed) {
		return err
	}
	return nil
}
