// Package mpi has worlds of ranks, communicators and messages between ranks, by the rules of MPI. A program is started
// as many times as it has ranks, by srun, mpirun, mpiexec or fisterra run, and each process opens the world:
//
//	world, err := mpi.Init(ctx, nil)
//	...
//	comm := world.Comm()
//	if comm.Rank() == 0 {
//		err = mpi.Send(ctx, comm, []float64{1, 2, 3}, 1, 0)
//	} else {
//		status, err = mpi.Recv(ctx, comm, buf, 0, mpi.AnyTag)
//	}
//	...
//	err = world.Close(ctx)
//
// Collectives are in package collective. This package also has Window (memory that other ranks read and write), Alloc
// (memory that the ranks of a host can map), AllocShared (memory that they have mapped), and Revoke, Shrink and AckLost
// for programs that go on when ranks are lost.
//
// # Rules for all of them
//
// Lengths are in elements; a quantity in bytes says so in its name. A buffer belongs to the library until the call
// returns, or until the Request has been waited for. After that it is the caller's, also if the outcome is an error,
// unless the error is ErrInFlight. Calls may be made from any goroutine. A call that blocks takes a context: when the
// context ends, the call ends with its cause. While a rank waits it makes progress for its whole world; while it
// computes, a goroutine does.
//
// Errors wrap one of this package's sentinels, the context's cause or what the system said (a syscall.Errno), and are
// *Error where a rank or a communicator can be named. A lost rank fails what involves it, with ErrPeerLost, and nothing
// else.
//
// # How it is made
//
// A Comm stands on a device: the engine, over the providers of mpi/transport, or the system's MPI library (native_device.go).
// Of the engine, match.go decides which receive takes which message, protocol.go how it travels, send.go and
// receive.go are its two sides, unexpected.go what no receive waits for, and progress.go, poll.go, sleep.go and keeper.go say who runs it and when. How ranks find
// each other is in detect.go (who started them), choice.go (by which transport), bootstrap.go and tree.go.
package mpi
