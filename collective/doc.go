// Package collective has the collective operations of a communicator: every
// member calls them, in the same order.
//
//	err := collective.Allreduce(ctx, comm, gradients, gradients, collective.Sum)
//
// A collective by messages is a plan, a schedule held as data (package plan): it is proved symbolically, priced by a cost
// model, and run by one executor. Where all ranks of a communicator are on one host and share memory, up to 16 of them,
// blocking collectives have two more ways from its 17th collective on: through that memory (MemoryPlan), and straight out
// of each other's buffers (DirectPlan). The memory is some 4 MiB of each rank for each communicator. A rank has it for up
// to 16 communicators at a time: one that comes to its 17th collective while 16 have it stays with messages, and Free of
// one of the 16 makes room for later ones. These two ways are priced and named like plans but are none: nothing proves
// them, and they are tested against an oracle instead. Explain says which plan or way is taken and why.
//
// Each collective has a form that returns at once, whose name begins with I (Iallreduce, Igatherv), but for
// ReproducibleAllreduce and the operator ReproducibleSum.
//
// # Rules for all of them
//
// Buffers hold elements, and counts are elements. Passing the same slice for send and recv means in place, as does what
// else a function names (this rank's block of the other slice, or nil). Any other overlap is an error. Unless in place,
// send is not written. Both slices belong to the library until the call returns, or the Wait of a nonblocking one. They are
// free then also after an error, unless that is mpi.ErrInFlight: then they are free when Done of the mpi.Error in it is
// closed.
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
// What the ranks called is compared in every message of up to 2 KiB, and when a rank is kept waiting: after a second, and
// again each time that it has waited twice as long. For collectives that the system's MPI library does only the latter
// holds: a rank that waits compares with the others in turn. Ranks that do not meet in a call, as two that take themselves
// for the root of a short broadcast, end it without an error, and learn of it when they meet in a later one; with
// Config.CheckAll in the call itself.
//
// Nothing is allocated per call after the first of its shape, but for Alltoallv and Ialltoallv with CheckAll, unless the
// shapes in use on a communicator need more than 64 MiB together, or their plans more than 16 MiB. Ranks of one host are
// quickest with vectors from mpi.Alloc, which they read as memory of their own: long ones, and those of a few KiB in an
// allgather or alltoall.
package collective
