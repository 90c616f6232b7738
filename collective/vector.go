package collective

import (
	"context"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Barrier returns when every rank has called it. Cost ⌈log₂P⌉α.
func Barrier(ctx context.Context, c *mpi.Comm) error {
	q := barrierCall()
	return run(ctx, c, &q)
}

// Ibarrier is Barrier that returns at once; its Request ends when every rank has called it.
func Ibarrier(c *mpi.Comm) Request {
	q := barrierCall()
	return start(c, &q)
}

func barrierCall() call { return call{key: key{kind: plan.Barrier, typ: elemType{size: 1}}} }

// Bcast copies buf of the root to buf of all ranks, equally long everywhere.
// Cost for short messages ⌈log₂P⌉(α + nβ), for long ones 2⌈log₂P⌉α + 2(P-1)/P·nβ or, in a pipeline, about nβ.
func Bcast[T mpi.Elem](ctx context.Context, c *mpi.Comm, buf []T, root int) error {
	q := bcastCall(c, buf, root)
	return run(ctx, c, &q)
}

// Ibcast is Bcast that returns at once.
func Ibcast[T mpi.Elem](c *mpi.Comm, buf []T, root int) Request {
	q := bcastCall(c, buf, root)
	return start(c, &q)
}

func bcastCall[T mpi.Elem](c *mpi.Comm, buf []T, root int) call {
	q := vector[T](plan.Bcast, len(buf))
	q.recv = mpi.Bytes(buf)
	q.at(c, root)
	return q
}

// Reduce combines send of all ranks into recv of the root; recv is ignored
// elsewhere and may be nil. Cost for short vectors ⌈log₂P⌉(α + nβ + nγ), for long ones
// 2⌈log₂P⌉α + 2(P-1)/P·nβ + (P-1)/P·nγ.
func Reduce[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op, root int) error {
	if op.exact {
		return reproducibleReduce(ctx, c, send, recv, root)
	}
	q := reduceCall(c, send, recv, op, root)
	return run(ctx, c, &q)
}

// Ireduce is Reduce that returns at once.
func Ireduce[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op, root int) Request {
	q := reduceCall(c, send, recv, op, root)
	return start(c, &q)
}

func reduceCall[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op, root int) call {
	q := vector[T](plan.Reduce, len(send))
	if q.at(c, root) {
		with(&q, send, recv)
		q.want("recv", len(recv), len(send))
	} else {
		q.send = mpi.Bytes(send)
	}
	by[T](&q, op)
	return q
}

// Allreduce combines send of all ranks into recv on all ranks; both have the
// same length everywhere, and the result has the same bits everywhere. Cost for short vectors ⌈log₂P⌉(α + nβ + nγ),
// for long ones 2⌈log₂P⌉α + 2(P-1)/P·nβ + (P-1)/P·nγ for any P.
func Allreduce[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op) error {
	if op.exact {
		return reproducibleAllreduce(ctx, c, send, recv)
	}
	q := pairCall(plan.Allreduce, send, recv, op)
	return run(ctx, c, &q)
}

// Iallreduce is Allreduce that returns at once.
func Iallreduce[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op) Request {
	q := pairCall(plan.Allreduce, send, recv, op)
	return start(c, &q)
}

// pairCall is a call on two vectors of the same length.
func pairCall[T mpi.Elem](kind plan.Kind, send, recv []T, op Op) call {
	q := vector[T](kind, len(send))
	with(&q, send, recv)
	q.want("recv", len(recv), len(send))
	by[T](&q, op)
	return q
}

// Scan combines send of this rank and all lower ones into recv. Cost ⌈log₂P⌉(α + nβ + nγ), or a pipeline's for
// long vectors.
func Scan[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op) error {
	q := pairCall(plan.Scan, send, recv, op)
	return run(ctx, c, &q)
}

// Iscan is Scan that returns at once.
func Iscan[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op) Request {
	q := pairCall(plan.Scan, send, recv, op)
	return start(c, &q)
}

// Exscan combines send of all lower ranks into recv; on rank 0 recv is not
// touched. Cost as Scan.
func Exscan[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op) error {
	q := pairCall(plan.Exscan, send, recv, op)
	return run(ctx, c, &q)
}

// Iexscan is Exscan that returns at once.
func Iexscan[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op) Request {
	q := pairCall(plan.Exscan, send, recv, op)
	return start(c, &q)
}
