package mpi

import (
	"cmp"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// op is one send or receive under way. Ops are pooled per world: a Request
// names one together with its generation, so that a spent handle is noticed.
// Everything in it is guarded by the device's lock.
type op struct {
	dev   device // nil: was over before it began
	kind  opKind
	phase phase

	exposed bool // send: buf is exposed under key
	busy    bool // the provider holds buf (SendFrom, Pull), or it is being copied (deliverSelf)
	gaveUp  bool // the caller has gone with ErrInFlight; recycle when finished
	retract bool // send: the receiver was asked to forget it; any: Cancel came while data was moving
	cleared bool // receive: the sender was told to send the data
	fitted  bool // receive: buf was made for the message that was found
	special bool // gaveUp, sender, stranded, waiter or done may be set

	gen  uint32 // of this use; odd while in use
	comm *Comm
	buf  []byte // the user's memory, or the library's view of it

	env   envelope // receives: source and tag may be wildcards
	peer  int32    // world rank of the partner; receives: once matched
	tag   int32    // receives: of the message, once matched
	bytes int      // of the message; sends: of what the receiver wants
	next  *op      // in a queue of the matcher
	err   error
	seq   uint64 // matching order; receives keep it while they have a message

	sender   uint64 // receive in rendezvous: the sender's token
	stranded error  // why the caller need not wait although the op has not finished
	waiter   *waiter
	done     chan struct{} // made on demand, closed when finished

	key    transport.Key // of exposed memory: this rank's or, to be pulled, the sender's
	index  uint32        // in the op table, stable
	native any           // the native device's own state
	preset Status        // without a device: what Wait returns

	_ [16]byte // makes 256: an op begins with a cache line, and a short message uses the first two
}

type opKind uint8

const (
	opSend opKind = iota
	opRecv
)

// phase is where an op stands.
type phase uint8

const (
	phaseFree     phase = iota
	phaseQueued         // send: in the peer's outbox, nothing has left
	phasePosted         // recv: waiting to be matched
	phaseOffered        // send: RTS has left, waiting for CTS or FIN
	phaseMoving         // data is moving
	phaseFinished       // status and err are final, the buffer is free
)

// status describes the message that a receive has got, whole or its beginning.
func (o *op) status() Status {
	if o.kind == opSend || o.peer < 0 {
		return Status{}
	}
	return Status{Source: o.comm.RankOf(int(o.peer)), Tag: int(o.tag), Bytes: o.bytes}
}

func (o *op) finished() bool { return o.phase == phaseFinished }

// underWay: in use, and not finished.
func (o *op) underWay() bool { return o.gen&1 == 1 && o.phase != phaseFree && !o.finished() }

// token names an op to the peer.
func (o *op) token() uint64 { return uint64(o.gen)<<32 | uint64(o.index) }

// opTable hands out ops and finds them by token. A token from the wire that
// names nothing in use finds nothing.
type opTable struct {
	dev  device
	all  []*op
	free []*op
}

func (t *opTable) get() *op {
	n := len(t.free)
	if n == 0 {
		o := &op{dev: t.dev, index: uint32(len(t.all)), gen: 1}
		t.all = append(t.all, o)
		return o
	}
	o := t.free[n-1]
	t.free = t.free[:n-1]
	o.gen++
	return o
}

func (t *opTable) put(o *op) {
	o.gen++
	o.phase = phaseFree
	o.comm, o.buf, o.err = nil, nil, nil
	if o.special {
		o.sender, o.stranded, o.waiter, o.done = 0, nil, nil, nil
	}
	o.exposed, o.busy, o.gaveUp, o.retract, o.cleared, o.fitted, o.special = false, false, false, false, false, false, false
	t.free = append(t.free, o)
}

// oldestFirst lists the ops in use, receives in the order in which they were posted. Withdrawn in that order, each is the
// first of its queue, and the matcher need not search for it.
func (t *opTable) oldestFirst() []*op {
	var used []*op
	for _, o := range t.all {
		if o.gen&1 == 1 {
			used = append(used, o)
		}
	}
	slices.SortStableFunc(used, func(a, b *op) int { return cmp.Compare(a.seq, b.seq) })
	return used
}

func (t *opTable) find(token uint64) *op {
	index := uint32(token)
	if int(index) >= len(t.all) {
		return nil
	}
	o := t.all[index]
	if o.gen != uint32(token>>32) || o.gen&1 == 0 {
		return nil
	}
	return o
}
