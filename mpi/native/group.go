package native

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// CreateGroup makes a communicator of the given world ranks, in that order. Exactly
// these ranks call it, with the same arguments; id tells apart groups that are made at
// the same time and share a rank, and one that was given up. It blocks until all of them have come. If
// ctx ends before, the error is its cause, and no member gets a communicator.
//
// MPI makes such a communicator only by a blocking call. It is entered under the
// world's lock, so two ranks that entered two of them in different orders would wait
// for each other for ever. Hence the members first agree that each of them is here and
// makes no other group now; whoever does is waited for. After that the call takes as
// long as its few messages.
//
// A member that has said yes and then left would leave the others in that call. So they
// agree once more, that all are still here. From then on ctx counts no longer but for members that
// have left, which are waited for only a while (staying) after its end.
//
// To all of that, Close is the end of ctx.
func (w *World) CreateGroup(ctx context.Context, name string, ranks []int, id int) (*Comm, error) {
	me := slices.Index(ranks, w.comm.rank)
	if me < 0 {
		return nil, &Error{Op: "CreateGroup", Comm: name, Rank: w.comm.rank, Peer: AnySource, Tag: id, Library: w.library,
			Err: ErrRank, Detail: fmt.Sprintf("rank %d is not among the members", w.comm.rank)}
	}
	tag := id % (w.caps.MaxTag + 1)
	members := make([]int32, len(ranks))
	for i, r := range ranks {
		if r < 0 || r >= w.comm.size {
			return nil, &Error{Op: "CreateGroup", Comm: name, Rank: w.comm.rank, Peer: r, Tag: id, Library: w.library,
				Err: ErrRank, Detail: fmt.Sprintf("world ranks run from 0 to %d", w.comm.size-1)}
		}
		members[i] = int32(r)
	}
	if !w.beginGroup() {
		return nil, &Error{Op: "CreateGroup", Comm: name, Rank: w.comm.rank, Peer: AnySource, Tag: id, Library: w.library, Err: ErrClosed}
	}
	defer w.making.Done()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	defer context.AfterFunc(w.open, func() { leave(ErrClosed) })()
	for attempt := 0; ; attempt++ {
		mine := w.creating.TryLock()
		all, err := w.agree(ctx, ranks, me, tag, mine)
		if err == nil && all {
			err = w.confirm(ctx, ranks, me, tag)
		}
		if err == nil && all {
			h, err := w.createGroup(members, tag)
			w.creating.Unlock()
			if err != nil {
				return nil, err
			}
			c, err := w.newComm(h, name)
			if err == nil {
				c.ranks = slices.Clone(ranks)
			}
			return c, err
		}
		if mine {
			w.creating.Unlock()
		}
		if err != nil {
			return nil, err
		}
		// Ranks differ in their waits, so that two groups do not keep meeting.
		nap(time.Duration(1+(w.comm.rank*7+attempt*13)%64) * 20 * time.Microsecond)
	}
}

// beginGroup counts a call of CreateGroup, unless the world is closing.
func (w *World) beginGroup() bool {
	w.lock()
	defer w.mu.Unlock()
	if w.closing {
		return false
	}
	w.making.Add(1)
	return true
}

// awaitGroups waits for the calls of CreateGroup that had begun when the world began to close.
func (w *World) awaitGroups(ctx context.Context) error {
	all := make(chan struct{})
	go func() {
		w.making.Wait()
		close(all)
	}()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("native: a communicator is still being made: %w", context.Cause(ctx))
	}
}

// staying is how long a member goes on after its context has ended when others may rely on it:
// longer than any of them is kept off its core.
const staying = 2 * time.Second

// confirm ends without an error on all members, or all but those that were kept waiting for more
// than staying by one that was not.
func (w *World) confirm(ctx context.Context, ranks []int, me, tag int) error {
	stay, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	defer leave(nil)
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(staying, func() { leave(context.Cause(ctx)) })
	})
	defer stop()
	_, err := w.agree(stay, ranks, me, tag, true)
	return err
}

// agree tells whether all members said yes. Dissemination (Hensgen, Finkel and Manber
// 1988): ⌈log₂n⌉ rounds, no member is through before all have come.
func (w *World) agree(ctx context.Context, ranks []int, me, tag int, yes bool) (bool, error) {
	n := len(ranks)
	mine, theirs := []byte{0}, []byte{0}
	if yes {
		mine[0] = 1
	}
	for step := 1; step < n; step *= 2 {
		var send, recv Request
		if err := w.system.Irecv(&recv, theirs, ranks[(me-step+n)%n], tag); err != nil {
			return false, err
		}
		if err := w.system.Isend(&send, mine, ranks[(me+step)%n], tag); err != nil {
			return false, err
		}
		for _, r := range []*Request{&send, &recv} {
			if _, err := w.Wait(ctx, r); err != nil {
				return false, fmt.Errorf("native: waiting for the members of a new communicator: %w", err)
			}
		}
		mine = []byte{mine[0] & theirs[0]}
	}
	return mine[0] == 1, nil
}

func (w *World) createGroup(members []int32, tag int) (handle, error) {
	w.lock()
	defer w.mu.Unlock()
	h := new([3]uintptr) // group of the world, group of the members, communicator
	rc := clib.Call(w.fn.commGroup, uintptr(w.comm.handle), uintptr(unsafe.Pointer(&h[0])))
	if int32(rc) == 0 {
		rc = clib.Call(w.fn.groupIncl, uintptr(w.load(&h[0])), uintptr(len(members)),
			uintptr(unsafe.Pointer(&members[0])), uintptr(unsafe.Pointer(&h[1])))
	}
	if int32(rc) == 0 {
		rc = clib.Call(w.fn.commCreateGroup, uintptr(w.comm.handle), uintptr(w.load(&h[1])), uintptr(tag), uintptr(unsafe.Pointer(&h[2])))
		clib.Call(w.fn.groupFree, uintptr(unsafe.Pointer(&h[1])))
		clib.Call(w.fn.groupFree, uintptr(unsafe.Pointer(&h[0])))
	}
	if code := int(int32(rc)); code != 0 {
		_, text := w.explain(code)
		return 0, &Error{Op: "CreateGroup", Rank: w.comm.rank, Peer: AnySource, Tag: tag, Library: w.library, Code: code, Detail: text, Err: ErrFailed}
	}
	return w.load(&h[2]), nil
}
