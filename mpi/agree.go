package mpi

import (
	"context"
	"fmt"
)

// The collective calls of this package need a maximum and a small allgather of their own, since collectives
// live above it. Both run over the shadow communicator, on a tag of their own.

const tagCollective = 0

// ReservedTags is the number of tags, from 0, that this package keeps for
// itself on shadow communicators. Low ones, since the system's MPI library may have few.
const ReservedTags = 16

// collectiveKind is what a member calls.
type collectiveKind uint8

const (
	collectiveDup collectiveKind = iota
	collectiveSplit
	collectiveWindow
	collectiveFence
	collectiveShare
)

var collectiveNames = [...]string{"dup", "split", "window", "fence", "allocshared"}

func (k collectiveKind) String() string {
	if int(k) < len(collectiveNames) {
		return collectiveNames[k]
	}
	return fmt.Sprintf("operation %d", uint8(k))
}

// collectiveCall is one call of Dup, Split, NewWindow, Fence or AllocShared on this member. In each of its rounds the
// member sends to one that is a power of two above it, and receives from the one as far below.
//
// Every message says which call it belongs to, so that the messages left behind by a call that some member gave up are
// not taken for those of another call. A member that gives up says so to all members that it sends to in any round;
// these give up, too, and pass it on. So nobody waits for a member that has gone on to something else.
type collectiveCall struct {
	c      *Comm // shadow
	kind   collectiveKind
	number uint64 // of the member's calls on c, from 1
	child  string // name of the communicator that it makes, if it makes one
	round  uint32
	origin int // who gave up first
}

// begin counts a call, also one that fails before it has sent anything: the others count it, too.
func (c *Comm) begin(kind collectiveKind) *collectiveCall {
	return &collectiveCall{c: c.shadow, kind: kind, number: c.shadow.calls.Add(1), origin: c.rank}
}

// beginChild begins a call that makes a communicator. Every call uses up a name, even if it fails or makes no communicator
// for this member, so that all members have the same name for the same communicator.
func (c *Comm) beginChild(kind collectiveKind) *collectiveCall {
	k := c.begin(kind)
	k.child = c.childName(kind.String())
	return k
}

// The words that a message begins with: the number of its call, the kind of call, and the round or roundGivenUp. The
// round's values follow, or the rank that gave up first.
const (
	callNumber = iota
	callKind
	callRound
	callWords
)

const roundGivenUp = 1 << 32

func (k *collectiveCall) message(round uint64, values []uint64) []uint64 {
	return append([]uint64{callNumber: k.number, callKind: uint64(k.kind), callRound: round}, values...)
}

// end tells the others when the call has failed here.
func (k *collectiveCall) end(err error) {
	if err == nil {
		return
	}
	c := k.c
	b := k.message(roundGivenUp, []uint64{uint64(k.origin)})
	for step := 1; step < c.Size(); step *= 2 {
		leave(Isend(c, b, (c.rank+step)%c.Size(), tagCollective))
	}
}

// leave lets a send that still waits for room or for its receiver finish without its caller, at the latest when the
// world closes. A Wait with the call's context, which may have ended, would take the message back.
func leave(r Request) {
	if _, _, ok := r.settled(); !ok {
		r.o.dev.letGo(r)
	}
}

// exchange is one round: it sends values to the member step ranks above, and returns when theirs, which is as long, holds
// those of the member step ranks below. It does not wait for its own send, whose buffer nobody else uses: the member above
// may have given up, and word of that may come only in a later round.
func (k *collectiveCall) exchange(ctx context.Context, step int, values, theirs []uint64) error {
	c := k.c
	to, from := (c.rank+step)%c.Size(), (c.rank-step+c.Size())%c.Size()
	out := Isend(c, k.message(uint64(k.round), values), to, tagCollective)
	err := k.receive(ctx, from, theirs)
	if err != nil {
		out.Cancel()
	}
	leave(out)
	k.round++
	return err
}

// receive gets the values of a round, and skips messages that an earlier call has left behind. These may be longer than
// the expected one, so it takes any length: not every MPI library delivers the beginning of a truncated message.
func (k *collectiveCall) receive(ctx context.Context, from int, theirs []uint64) error {
	for {
		in, status, err := RecvAlloc[uint64](ctx, k.c, from, tagCollective)
		if err != nil {
			return err
		}
		if stale, err := k.check(from, in, status.Bytes, len(theirs)); !stale {
			copy(theirs, in[min(callWords, len(in)):])
			return err
		}
	}
}

// check looks at a message of nBytes bytes, which should carry the given number of values, and reports whether it is
// stale: of an earlier call, which this member has given up.
func (k *collectiveCall) check(from int, in []uint64, nBytes, values int) (stale bool, err error) {
	if k.c.Caps().SizesOnly {
		return false, nil
	}
	if nBytes < 8*callWords {
		return false, k.c.fail(k.kind.String(), from, AnyTag, ErrMismatch, fmt.Sprintf("a message of %d bytes, at least %d are needed", nBytes, 8*callWords))
	}
	wantBytes := 8 * (callWords + values)
	switch theirs := collectiveKind(in[callKind]); {
	case in[callNumber] < k.number:
		return true, nil
	case in[callNumber] > k.number || theirs != k.kind:
		return false, k.c.fail(k.kind.String(), from, AnyTag, ErrMismatch, fmt.Sprintf("its collective call %d on the communicator is a %v, call %d of this rank a %v",
			in[callNumber], theirs, k.number, k.kind))
	case in[callRound] == roundGivenUp:
		k.origin = from
		if len(in) > callWords && in[callWords] < uint64(k.c.Size()) {
			k.origin = int(in[callWords])
		}
		return false, k.c.fail(k.kind.String(), k.origin, AnyTag, ErrCancelled, "that rank gave up")
	case in[callRound] != uint64(k.round) || nBytes != wantBytes:
		return false, k.c.fail(k.kind.String(), from, AnyTag, ErrMismatch, fmt.Sprintf("%d bytes in round %d, this rank expects %d in round %d",
			nBytes, in[callRound], wantBytes, k.round))
	}
	return false, nil
}

// derive makes this member's handle of a new communicator out of c. The group may be nil: this member is in none.
func (k *collectiveCall) derive(ctx context.Context, c *Comm, group []int32, rank int) (*Comm, error) {
	id, claimed, err := k.context(ctx)
	switch {
	case err == nil && group != nil:
		return c.derive(ctx, k.child, group, rank, id)
	case claimed && group != nil:
		c.dev.forgo(group, id)
	}
	return nil, err
}

// context finds a context id that is free on every member: the largest
// that any of them would take next. Two goroutines that make communicators at
// the same time may arrive at one number; then only one of them claims it on each rank, and
// whoever did not get it everywhere tries the next. Even if context fails, the id may be claimed on this rank
// (claimed): other members may go on to make a communicator with it.
func (k *collectiveCall) context(ctx context.Context) (id uint32, claimed bool, err error) {
	dev := k.c.dev
	for {
		if id, err = k.maximum(ctx, dev.nextContext()); err != nil {
			return 0, false, err
		}
		if id >= shrinkContexts {
			return 0, false, k.c.fail(k.kind.String(), ProcNull, AnyTag, ErrArgument, "a process of this job has had all the communicators and windows that there are ids for")
		}
		claimed = dev.claimContext(id)
		var refused uint32
		if !claimed {
			refused = 1
		}
		if refused, err = k.maximum(ctx, refused); err != nil || refused == 0 {
			return id, claimed, err
		}
	}
}

// maximum is the largest of the members' values. The maximum is idempotent,
// so dissemination works for every size.
func (k *collectiveCall) maximum(ctx context.Context, value uint32) (uint32, error) {
	if k.c.Size() == 1 { // no message tells that the communicator has ended
		_, _, err := k.c.dev.iprobe(k.c, 0, tagCollective)
		return value, err
	}
	mine, theirs := []uint64{uint64(value)}, make([]uint64, 1)
	for step := 1; step < k.c.Size(); step *= 2 {
		if err := k.exchange(ctx, step, mine, theirs); err != nil {
			return 0, err
		}
		mine[0] = max(mine[0], theirs[0])
	}
	return uint32(mine[0]), nil
}

// barrier waits until all members are in it.
func (k *collectiveCall) barrier(ctx context.Context) error {
	_, err := k.maximum(ctx, 0)
	return err
}

// allgather fills all, n words for each rank, of which the caller has set
// its own. Bruck's algorithm (Bruck et al. 1997): ⌈log₂P⌉ rounds.
func (k *collectiveCall) allgather(ctx context.Context, all []uint64, n int) error {
	p, rank := k.c.Size(), k.c.rank
	buf := make([]uint64, p*n) // block i is that of the member i below
	copy(buf, all[rank*n:(rank+1)*n])
	for have := 1; have < p; have *= 2 {
		count := min(have, p-have)
		if err := k.exchange(ctx, have, buf[:count*n], buf[have*n:(have+count)*n]); err != nil {
			return err
		}
	}
	for i := range p {
		r := (rank - i + p) % p
		copy(all[r*n:(r+1)*n], buf[i*n:(i+1)*n])
	}
	return nil
}
