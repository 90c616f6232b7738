// Package collective has the collective operations of a communicator: every
// member calls them, in the same order.
//
//	err := collective.Allreduce(ctx, comm, gradients, gradients, collective.Sum)
//
// A collective by messages is a plan, a schedule held as data (package plan): it is
// proved symbolically, priced by a cost model, and run by one executor. Ranks of one host that share memory,
// up to 16 and all of the communicator, have two more ways from their 17th collective on, through that memory (MemoryPlan) and
// out of each other's buffers (DirectPlan). The memory is some 4 MiB of each rank for a communicator, for up to 16 at a time:
// what is made while 16 have it goes by messages, until Free of one makes room for another. These are priced and named like
// plans but are none: nothing proves them, and they are tested against an oracle instead. Explain says which plan or way is taken and why.
//
// Each has a form that returns at once, which begins with I (Iallreduce, Igatherv), but for
// ReproducibleAllreduce and the operator ReproducibleSum.
//
// # Rules for all of them
//
// Buffers hold elements, and counts are elements. Passing the same slice for
// send and recv, or what else the function names (this rank's block of the other, nil), means in place. Any other
// overlap is an error. Unless in place send is not written; both belong to the library until the call returns (Wait, for the nonblocking ones),
// and are free then also after an error, unless it is mpi.ErrInFlight: then they are free when Done of the mpi.Error in it
// is closed.
//
// Calls may be made from any goroutine, but their order on one communicator
// must be the same on all ranks. Several may be under way at once.
//
// A call blocks until this rank's part is done, which does not mean that
// other ranks have finished. It ends early when ctx does; the
// other ranks are told. After a failure the communicator takes no further collectives (ErrBroken):
// its ranks no longer agree on which one comes next. Make a new one with Shrink, Dup or Split.
//
// Errors are *Error and wrap mpi.ErrPeerLost (with rank and host), mpi.ErrMismatch
// (ranks called different things; it names who called what), mpi.ErrRevoked,
// mpi.ErrCancelled (another rank gave up, or another call of this one), mpi.ErrClosed (the world was
// closed, or the communicator freed), ErrArgument, ErrBroken or the context's cause.
// What the ranks called is compared in every message of up to 2 KiB, and when a rank is kept waiting for
// a second, and again for twice as long each time; of what the system's MPI library does only then, one rank after the other.
// Ranks that do not meet in a call, as two that take themselves for the root of a short broadcast, end it without an error, and
// learn of it when they meet in a later one; with Config.CheckAll in the call itself.
//
// Nothing is allocated per call after the first of its shape, but for Alltoallv and Ialltoallv with CheckAll, unless
// the shapes in use on a communicator need more than 64 MiB together, or their plans more than 16 MiB. Ranks of one host are quickest with
// vectors from mpi.Alloc, which they read as memory of their own: long ones, and those of a few KiB in an allgather or alltoall.
package collective
