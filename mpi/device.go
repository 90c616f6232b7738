package mpi

import (
	"context"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// device is what a Comm stands on: the message engine over Fisterra's own
// providers, or the system's MPI library. Methods take world ranks in envelopes and are safe
// for any goroutine. Arguments have been checked by Comm.
type device interface {
	caps() DeviceCaps
	worldRank() int

	// send, recv and sendrecv are the blocking forms; they do not allocate on their
	// fast path. Of sendrecv either rank may be ProcNull.
	send(ctx context.Context, c *Comm, buf []byte, dst, tag int) error
	recv(ctx context.Context, c *Comm, buf []byte, src, tag int) (Status, error)
	sendrecv(ctx context.Context, c *Comm, send []byte, dst, sendTag int, recv []byte, src, recvTag int) (Status, error)

	isend(c *Comm, buf []byte, dst, tag int) Request
	irecv(c *Comm, buf []byte, src, tag int) Request

	// probe waits for a message without receiving it; iprobe looks once.
	probe(ctx context.Context, c *Comm, src, tag int) (Status, error)
	iprobe(c *Comm, src, tag int) (Status, bool, error)

	// recvAlloc finds a message and receives it into memory that alloc makes for it. If alloc fails, the message stays
	// where it is.
	recvAlloc(ctx context.Context, c *Comm, src, tag int, alloc func(Status) ([]byte, error)) (Status, error)

	wait(ctx context.Context, r Request) (Status, error)
	test(r Request) (Status, bool, error)
	cancel(r Request)
	doneChan(r Request) <-chan struct{}
	// letGo lets a send that is under way finish without its caller, who leaves the buffer as it is. Only in virtual time,
	// where nobody makes progress but waiting callers, it blocks until the send has finished.
	letGo(r Request)
	// waitSome waits for the first of rs, which is under way on this device, and perhaps for more after it, up to the
	// first that is of another device or fails. When ctx ends, all requests of this device are given up together. It
	// returns how many have been waited for, at least 1, and the worst of their errors.
	waitSome(ctx context.Context, rs []Request) (int, error)
	waitAny(ctx context.Context, rs []Request) (int, Status, error)

	// attach is called on every member of a new communicator before it is
	// used, once the members agree on its context ids; detach when it is freed. forgo is called where this rank,
	// having claimed the ids, will not attach: the members of the group must not wait for it.
	attach(ctx context.Context, c *Comm) error
	forgo(group []int32, context uint32)
	detach(c *Comm)

	// nextContext is the context id that this rank would give to its next
	// communicator; claimContext takes one that the members agreed on, and
	// reports false if it is no longer free here.
	nextContext() uint32
	claimContext(id uint32) bool

	revoke(c *Comm)
	// lost lists the members (ranks of c) known to be lost; acknowledge
	// lets AnySource receives on c go on without them.
	lost(c *Comm) []int
	acknowledge(c *Comm) []int

	transport(worldRank int) (name, reason string)
	// path says how large messages to another rank travel, if that is known.
	path(worldRank int) string

	// mapper is how ranks of this host map each other's memory; nil if they cannot. mapperOf is the
	// mapper that reaches one rank; nil if there is none, and for this rank itself.
	mapper() transport.Mapper
	mapperOf(worldRank int) transport.Mapper

	close(ctx context.Context) error
}

// DeviceCaps says what the device under a communicator can do.
type DeviceCaps struct {
	Name string // "fisterra", or "mpi" over the system's library
	// NamesLost: operations with a lost rank fail with ErrPeerLost and name
	// it. Without it the system's MPI ends the job, or hangs, as its site configured, Shrink fails, and Revoke is heard by
	// its caller alone.
	NamesLost bool
	// CancelsSends: a send whose message has not been matched can be taken back.
	CancelsSends bool
	// SleepsInKernel: a waiting rank costs no CPU time.
	SleepsInKernel bool
	// Windows: there is one-sided communication.
	Windows bool
	// SizesOnly: payloads are not carried (large simulations).
	SizesOnly bool
}
