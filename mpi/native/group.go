package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// CreateGroup makes a communicator of the given world ranks, in that order. Exactly these ranks call it, with the
// same arguments; id tells apart groups that are made at the same time and share a rank, and a group from an
// earlier one that was given up. CreateGroup blocks until all members have come. If ctx ends before that, the error
// is its cause, and the other members get [ErrCancelled].
//
// Round 1: is everybody here, and free to make this group? If a member is not free, all try again. Round 2: is
// everybody still here? From then on ctx does not count. Then all enter MPI_Comm_create_group, and nobody leaves
// any more.
//
// That call blocks, under the world's lock. Two ranks that entered two such calls in different orders would wait
// for each other for ever: hence round 1. A member that said yes in round 1 and then left would leave the others
// stuck in the call: hence round 2. After both rounds the call takes no longer than its few messages.
//
// A member that leaves tells the members that wait for it, now or later, and they leave, too, with [ErrCancelled].
// So all members get the communicator, or none.
//
// Close of the world does to all of this what the end of ctx does.
func (w *World) CreateGroup(ctx context.Context, name string, ranks []int, id int) (*Comm, error) {
	m := w.meeting(name, ranks, id)
	if m.me < 0 {
		return nil, m.fail(AnySource, ErrRank, fmt.Sprintf("rank %d is not among the members", w.comm.rank))
	}
	members := make([]int32, len(ranks))
	for i, r := range ranks {
		if r < 0 || r >= w.comm.size {
			return nil, m.fail(r, ErrRank, fmt.Sprintf("world ranks run from 0 to %d", w.comm.size-1))
		}
		members[i] = int32(r)
	}
	if !w.beginGroup() {
		return nil, m.fail(AnySource, ErrClosed, "")
	}
	defer w.making.Done()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	defer context.AfterFunc(w.open, func() { leave(ErrClosed) })()
	for attempt := 0; ; attempt++ {
		mine := w.creating.TryLock()
		all, err := m.agree(ctx, mine)
		if err == nil && all {
			_, err = m.agree(context.WithoutCancel(ctx), mine)
		}
		if err == nil && all {
			h, err := w.createGroup(members, m.tag)
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
			m.leave(err)
			return nil, err
		}
		// Ranks wait for different times, so that two groups do not get into each other's way again and again.
		nap(time.Duration(1+(w.comm.rank*7+attempt*13)%64) * 20 * time.Microsecond)
	}
}

// LeaveGroup tells the other members of a group that this rank will not call CreateGroup for it, so that their
// calls end with [ErrCancelled]. It does not block.
func (w *World) LeaveGroup(ranks []int, id int) {
	if !w.beginGroup() {
		return // nobody makes groups any more
	}
	defer w.making.Done()
	w.meeting("", ranks, id).leave(nil)
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

// meeting is how the members of a group that is being made hear of each other: by messages of one word, under a tag
// that is this group's alone. Words that nobody receives, because a member has left, disturb nobody.
type meeting struct {
	w     *World
	name  string
	ranks []int // in the world
	me    int   // in ranks
	tag   int
}

// What a member says in a round.
const (
	sayNo uint32 = iota
	sayYes
	sayClosed // the world has closed
	sayLeft   // plus the world rank of the member that left first
)

func (w *World) meeting(name string, ranks []int, id int) *meeting {
	return &meeting{w: w, name: name, ranks: ranks, me: slices.Index(ranks, w.comm.rank), tag: id % (w.caps.MaxTag + 1)}
}

func (m *meeting) fail(peer int, sentinel error, detail string) error {
	return &Error{Op: "CreateGroup", Comm: m.name, Rank: m.w.comm.rank, Peer: peer, Tag: m.tag, Library: m.w.library, Err: sentinel, Detail: detail}
}

// agree tells whether all members said yes. Dissemination (Hensgen, Finkel and Manber
// 1988): ⌈log₂n⌉ rounds, no member is through before all have come.
func (m *meeting) agree(ctx context.Context, yes bool) (bool, error) {
	n, word, theirs := len(m.ranks), sayNo, make([]byte, 4)
	if yes {
		word = sayYes
	}
	for step := 1; step < n; step *= 2 {
		var recv Request
		if err := m.w.system.Irecv(&recv, theirs, m.ranks[(m.me-step+n)%n], m.tag); err != nil {
			return false, err
		}
		send, err := m.say(word, step)
		if err != nil {
			return false, err
		}
		for _, r := range []*Request{send, &recv} {
			if _, err := m.w.Wait(ctx, r); err != nil {
				_ = recv.Cancel()
				_, _ = recv.Test() // nobody waits for it any more: the library would keep it
				return false, fmt.Errorf("native: waiting for the members of a new communicator: %w", err)
			}
		}
		switch heard := binary.NativeEndian.Uint32(theirs); {
		case heard == sayClosed:
			return false, m.fail(AnySource, ErrClosed, "")
		case heard >= sayLeft:
			gone := int(heard - sayLeft)
			return false, m.fail(gone, ErrCancelled, fmt.Sprintf("rank %d of the world gave up", gone))
		default:
			word = min(word, heard)
		}
	}
	return word == sayYes, nil
}

// say starts sending a word to the member whom this one sends to in the round of that step.
func (m *meeting) say(word uint32, step int) (*Request, error) {
	send := new(Request)
	return send, m.w.system.Isend(send, binary.NativeEndian.AppendUint32(nil, word), m.ranks[(m.me+step)%len(m.ranks)], m.tag)
}

// leave tells all to whom this member sends in any round that it has left, and why. Nobody waits for those sends:
// short as they are, the library keeps them.
func (m *meeting) leave(why error) {
	word := sayLeft + uint32(m.w.comm.rank)
	var at *Error
	switch {
	case errors.Is(why, ErrClosed):
		word = sayClosed
	case errors.Is(why, ErrCancelled) && errors.As(why, &at):
		word = sayLeft + uint32(at.Peer)
	}
	for step := 1; step < len(m.ranks); step *= 2 {
		_, _ = m.say(word, step) // where it fails, the world is closed
	}
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
