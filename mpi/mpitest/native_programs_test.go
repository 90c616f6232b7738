package mpitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

const fifoVariable = "FISTERRA_TEST_MPI_FIFO"

// describes looks at what a world says of itself.
func describes(_ context.Context, w *mpi.World) error {
	c := w.Comm()
	if c.Caps() != (mpi.DeviceCaps{Name: "mpi"}) {
		return fmt.Errorf("caps %+v: the device promises what MPI cannot do", c.Caps())
	}
	if lost := append(w.Lost(), c.AckLost()...); lost != nil {
		return fmt.Errorf("lost %v", lost)
	}
	if w.LocalSize() != w.Size() || w.LocalRank() != w.Rank() || w.Position(w.Rank()) != w.Rank() || w.Host(0) == "" {
		return fmt.Errorf("local rank %d of %d, position %d, host %q", w.LocalRank(), w.LocalSize(), w.Position(w.Rank()), w.Host(0))
	}
	for _, info := range w.Transports() {
		if info.Name != "mpi" || !strings.Contains(info.Reason, w.Launcher()+" ") || !strings.Contains(info.Reason, ".so") {
			return fmt.Errorf("transport to rank %d: %s, %s under launcher %s", info.Rank, info.Name, info.Reason, w.Launcher())
		}
		// Open MPI by UCX, and MPICH, look at lengths themselves, and get long messages whole.
		pulled := w.Launcher() == "openmpi" && os.Getenv("OMPI_MCA_pml") != "ucx" && info.Rank != w.Rank()
		if strings.HasPrefix(info.Path, "process_vm_readv of the receiver") != pulled {
			return fmt.Errorf("large messages to rank %d: %q", info.Rank, info.Path)
		}
	}
	if w.Rank() == 0 {
		fmt.Println(w.Transports()[1])
	}
	return nil
}

// mallocs: neither messages nor the library's own collectives allocate.
func mallocs(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	collectives, ok := c.Native()
	if !ok {
		return errors.New("no collectives of the library's own")
	}
	for _, n := range []int{8, 64 << 10} {
		send, recv := make([]byte, n), make([]byte, n)
		calls := append(messageCalls(ctx, c, n, 1), call{"Allreduce", func() error {
			_, err := collectives.Allreduce(send, recv, mpi.KindOf[float32](), mpi.ReduceSum).Wait(ctx)
			return err
		}})
		for _, k := range calls {
			if err := allocatesNothing(c, n, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// inFlight: a send that MPI cannot take back says when its buffer is free.
func inFlight(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	const size = 8 << 20
	if c.Rank() == 1 {
		if _, err := mpi.Recv(ctx, c, make([]byte, 1), 0, 9); err != nil { // rank 0 has given up
			return err
		}
		for i := range 2 {
			if err := expect(ctx, c, 0, i, uint64(i), size); err != nil {
				return err
			}
		}
		return nil
	}
	var free []<-chan struct{}
	for i, send := range []func(context.Context, []byte) error{
		func(ctx context.Context, b []byte) error { return mpi.Send(ctx, c, b, 1, 0) },
		func(ctx context.Context, b []byte) error { return wait(ctx, mpi.Isend(c, b, 1, 1)) },
	} {
		cause := fmt.Errorf("send %d is given up", i)
		ended, end := context.WithCancelCause(ctx)
		end(cause)
		err := send(ended, filled(uint64(i), size))
		if err := errors.Join(wants("send", err, mpi.ErrInFlight), wants("send", err, cause)); err != nil {
			return err
		}
		var at *mpi.Error
		errors.As(err, &at)
		select {
		case <-at.Done:
			return errors.New("the buffer is free although nobody has received")
		default:
		}
		free = append(free, at.Done)
	}
	if err := mpi.Send(ctx, c, []byte{1}, 1, 9); err != nil {
		return err
	}
	for _, done := range free {
		select {
		case <-done:
		case <-ctx.Done():
			return errors.New("the buffer is never free")
		}
	}
	return nil
}

// overtaken: an operation that finishes while the wait for it is being given up has finished: its message is not lost.
func overtaken(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	const size = 2 << 20
	word := make([]byte, 1)
	waits := []func(context.Context, mpi.Request) error{
		wait,
		func(ctx context.Context, r mpi.Request) error { return mpi.WaitAll(ctx, []mpi.Request{r}) },
	}
	for i, wait := range waits {
		tag := uint64(i)
		if c.Rank() == 1 {
			if _, err := mpi.Recv(ctx, c, word, 0, 9); err != nil {
				return err
			}
			if err := mpi.Send(ctx, c, filled(tag, size), 0, i); err != nil {
				return err
			}
			if _, err := mpi.Recv(ctx, c, word, 0, 9); err != nil {
				return err
			}
			if err := expect(ctx, c, 0, i, tag, size); err != nil {
				return err
			}
			continue
		}
		got := make([]byte, size)
		for _, begin := range []func() mpi.Request{
			func() mpi.Request { return mpi.Irecv(c, got, 1, i) },
			func() mpi.Request { return mpi.Isend(c, filled(tag, size), 1, i) },
		} {
			r := begin()
			done := r.Done() // somebody else waits for it, too
			var err error
			asked := false
			ended := &askedContext{Context: ctx, once: sync.OnceFunc(func() {
				asked = true
				if err = mpi.Send(ctx, c, word, 1, 9); err == nil {
					<-done
				}
			})}
			if err := errors.Join(wait(ended, r), err); err != nil || !asked {
				return fmt.Errorf("finished while it was given up (%v): %w", asked, err)
			}
		}
		if err := verify(got, tag); err != nil {
			return err
		}
	}
	return nil
}

// askedContext has ended. The first time that somebody asks why, something happens before the answer.
type askedContext struct {
	context.Context
	once func()
}

func (*askedContext) Err() error { return context.Canceled }

func (*askedContext) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (c *askedContext) Value(key any) any { // context.Cause begins with it
	c.once()
	return c.Context.Value(key)
}

// eager: both ranks send short messages of all lengths before either receives.
func eager(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	peer := 1 - c.Rank()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for n := range 65 {
		if err := mpi.Send(ctx, c, filled(uint64(n), n), peer, 1); err != nil {
			return fmt.Errorf("%d B: %w", n, err)
		}
		if err := expect(ctx, c, peer, 1, uint64(n), n); err != nil {
			return fmt.Errorf("%d B: %w", n, err)
		}
	}
	return nil
}

// limits: all tags up to MaxTag work, and the topmost; one in between is
// refused with the library's limit.
func limits(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	peer, most := 1-c.Rank(), c.MaxTag()
	if most > mpi.MaxTag || most < 32767-16 || c.Shadow().MaxTag() != most {
		return fmt.Errorf("tags to %d", most)
	}
	for _, tag := range []int{most, mpi.MaxTag, mpi.MaxTag - 15} {
		if c.Rank() == 0 {
			if err := mpi.Send(ctx, c, []byte{1}, peer, tag); err != nil {
				return err
			}
			continue
		}
		s, err := c.Probe(ctx, peer, mpi.AnyTag)
		if err := errors.Join(err, is(s, 0, tag, 1)); err != nil {
			return err
		}
		if err := expectOne(ctx, c, peer, tag); err != nil {
			return err
		}
	}
	if most < mpi.MaxTag {
		for _, err := range []error{
			mpi.Send(ctx, c, []byte{1}, peer, most+1), recvOnly(ctx, c, nil, peer, most+1),
			wait(ctx, mpi.Isend(c, []byte{1}, peer, mpi.MaxTag-16)), wait(ctx, mpi.Irecv(c, []byte{1}, peer, most+1)),
		} {
			if err := wants("too large a tag", err, mpi.ErrTag); err != nil {
				return err
			}
			if limit := fmt.Sprintf("with %s 4.", w.Launcher()); !strings.Contains(err.Error(), limit) || !strings.Contains(err.Error(), fmt.Sprintf("run from 0 to %d ", most)) {
				return fmt.Errorf("the error does not tell the library's limit: %w", err)
			}
		}
	}
	if c.Rank() == 0 {
		fmt.Println("tags to", most)
	}
	return nil
}

func expectOne(ctx context.Context, c *mpi.Comm, src, tag int) error {
	got := []byte{0}
	s, err := mpi.Recv(ctx, c, got, src, tag)
	if err == nil && got[0] != 1 {
		err = fmt.Errorf("received %v", got)
	}
	return errors.Join(err, is(s, src, tag, 1))
}

// truncation is checkTruncation for libraries that do not tell the length of
// a message that is too long, or do not deliver its beginning.
func truncation(ctx context.Context, c *mpi.Comm) error {
	cases := []struct{ sent, room int }{{100, 10}, {3000, 0}, {9000, 8999}, {200_000, 1}, {1 << 20, 1000}, {5 << 20, 1 << 20}}
	for i, k := range cases {
		if c.Rank() == 0 {
			if err := mpi.Send(ctx, c, filled(uint64(i), k.sent), 1, i); err != nil {
				return err
			}
			if err := mpi.Send(ctx, c, filled(uint64(i+100), 300), 1, i); err != nil {
				return err
			}
			continue
		}
		buf := make([]byte, k.sent)
		s, err := mpi.Recv(ctx, c, buf[:k.room], 0, i)
		if err := wants(fmt.Sprintf("%d B into %d", k.sent, k.room), err, mpi.ErrTruncated); err != nil {
			return err
		}
		if s.Bytes != -1 && s.Bytes != k.sent {
			return fmt.Errorf("%d B into %d: the status says %d B", k.sent, k.room, s.Bytes)
		}
		if !bytes.Equal(buf[k.room:], make([]byte, k.sent-k.room)) {
			return fmt.Errorf("%d B into %d: bytes beyond the buffer were written", k.sent, k.room)
		}
		if !bytes.Equal(buf, make([]byte, k.sent)) {
			if err := verify(buf[:k.room], uint64(i)); err != nil {
				return fmt.Errorf("%d B into %d: neither its beginning nor untouched: %w", k.sent, k.room, err)
			}
		}
		if err := expect(ctx, c, 0, i, uint64(i+100), 300); err != nil {
			return fmt.Errorf("after %d B into %d: %w", k.sent, k.room, err)
		}
	}
	return nil
}

// freed: a rank frees a communicator while the other still uses another.
func freed(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	if c.Rank() == 0 {
		d.Free()
	}
	if err := sync2(ctx, c, 1-c.Rank(), 1); err != nil {
		return err
	}
	d.Free()
	d.Free() // once more is nothing
	for _, err := range []error{
		mpi.Send(ctx, d, []byte{1}, 0, 1), recvOnly(ctx, d, nil, 0, 1), wait(ctx, mpi.Isend(d, []byte{1}, 0, 1)),
		wait(ctx, mpi.Irecv(d, []byte{1}, 0, 1)), wait(ctx, must(d.Native()).Barrier()),
	} {
		if err := wants("freed communicator", err, mpi.ErrClosed); err != nil {
			return err
		}
	}
	return sync2(ctx, c, 1-c.Rank(), 1)
}

// hasty: rank 0 gives communicators up at all times, the others never. They get them, or hear of it.
func hasty(ctx context.Context, w *mpi.World) error {
	const guard = 20 * time.Second
	c := w.Comm()
	seed := uint64(time.Now().UnixNano())
	if c.Rank() == 0 {
		fmt.Println("seed", seed)
	}
	draw := rand.New(rand.NewPCG(seed, 0))
	for i := range 300 {
		patience := guard
		if c.Rank() == 0 {
			patience = time.Duration(draw.Int64N(int64(3 * time.Millisecond)))
		}
		short, stop := context.WithTimeout(ctx, patience)
		var d *mpi.Comm
		var err error
		if i%2 == 0 {
			d, err = c.Dup(short)
		} else {
			d, err = c.Split(short, 0, -c.Rank())
		}
		stop()
		switch {
		case err == nil:
			d.Free()
		case c.Rank() == 0 && errors.Is(err, context.DeadlineExceeded):
		case !errors.Is(err, mpi.ErrCancelled):
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	return shift(ctx, c, 0, c.Rank(), func(left int) int { return left })
}

func must[T any](v T, ok bool) T {
	if !ok {
		panic("absent")
	}
	return v
}

// revoked: posted receives end and new operations are refused, here only.
func revoked(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	peer := 1 - c.Rank()
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	if c.Rank() == 0 {
		posted := mpi.Irecv(d, make([]byte, 1), peer, 5)
		probed := make(chan error)
		go func() { _, err := d.Probe(ctx, peer, 6); probed <- err }()
		d.Revoke()
		if err := wants("probe of a revoked communicator", <-probed, mpi.ErrRevoked); err != nil {
			return err
		}
		for _, err := range []error{
			wait(ctx, posted), mpi.Send(ctx, d, []byte{1}, peer, 1), recvOnly(ctx, d, nil, peer, 1),
			wait(ctx, mpi.Irecv(d.Shadow(), []byte{1}, peer, 1)), wait(ctx, must(d.Native()).Barrier()),
		} {
			if err := wants("revoked communicator", err, mpi.ErrRevoked); err != nil {
				return err
			}
		}
	}
	if _, err := d.Shrink(ctx); !errors.Is(err, mpi.ErrTransport) {
		return fmt.Errorf("shrink: %w", err)
	}
	// A probe that begins at any time of a Revoke ends by it.
	for range 100 {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		const probes = 8
		var begun, ended sync.WaitGroup
		begun.Add(probes)
		errs := make(chan error, probes)
		guarded, stop := context.WithTimeout(ctx, 20*time.Second)
		for range probes {
			ended.Go(func() {
				begun.Done()
				_, err := d.Probe(guarded, peer, 6)
				errs <- wants("probe beside a Revoke", err, mpi.ErrRevoked)
			})
		}
		begun.Wait()
		d.Revoke()
		ended.Wait()
		over := guarded.Err()
		stop()
		if over != nil {
			return fmt.Errorf("a probe has not ended by a Revoke beside it: %w", over)
		}
		for range probes {
			if err := <-errs; err != nil {
				return err
			}
		}
		d.Free()
	}
	return sync2(ctx, c, peer, 1)
}

// background: rank 1 posts a receive and makes no call until rank 0's send of a
// large message has ended, which it learns by a pipe.
func background(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	const size = 16 << 20
	if c.Rank() == 0 {
		if _, err := mpi.Recv(ctx, c, make([]byte, 1), 1, 1); err != nil { // the receive is posted
			return err
		}
		if err := mpi.Send(ctx, c, filled(1, size), 1, 2); err != nil {
			return err
		}
		return os.WriteFile(os.Getenv(fifoVariable), []byte("done"), 0)
	}
	buf := make([]byte, size)
	r := mpi.Irecv(c, buf, 0, 2)
	if err := mpi.Send(ctx, c, []byte{1}, 0, 1); err != nil {
		return err
	}
	said, err := os.ReadFile(os.Getenv(fifoVariable))
	if err != nil || !bytes.Equal(said, []byte("done")) {
		return fmt.Errorf("rank 0 said %q, %w", said, err)
	}
	if err := wait(ctx, r); err != nil {
		return err
	}
	return verify(buf, 1)
}
