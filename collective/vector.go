package collective

import (
	"context"
	"reflect"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Barrier returns when every rank has called it. Cost ⌈log₂P⌉α.
func Barrier(ctx context.Context, c *mpi.Comm) error {
	var m meeting
	barrierCall(&m.call)
	return run(ctx, c, &m)
}

// Ibarrier is Barrier that returns at once; its Request ends when every rank has called it.
func Ibarrier(c *mpi.Comm) Request {
	var q call
	barrierCall(&q)
	return start(c, &q)
}

func barrierCall(q *call) { q.kind, q.typ = plan.Barrier, elemType{size: 1} }

// Bcast copies buf of the root to buf of all ranks, equally long everywhere.
// Cost for short messages ⌈log₂P⌉(α + nβ), for long ones 2⌈log₂P⌉α + 2(P-1)/P·nβ or, in a pipeline, about nβ.
func Bcast[T mpi.Elem](ctx context.Context, c *mpi.Comm, buf []T, root int) error {
	var m meeting
	bcastCall(&m.call, c, buf, root)
	return run(ctx, c, &m)
}

// Ibcast is Bcast that returns at once.
func Ibcast[T mpi.Elem](c *mpi.Comm, buf []T, root int) Request {
	var q call
	bcastCall(&q, c, buf, root)
	return start(c, &q)
}

func bcastCall[T mpi.Elem](q *call, c *mpi.Comm, buf []T, root int) {
	q.setVector(plan.Bcast, typeOf[T](), len(buf))
	q.recv = mpi.Bytes(buf)
	q.setRoot(c, root)
}

// Reduce combines send of all ranks into recv of the root; recv is ignored
// elsewhere and may be nil. Cost for short vectors ⌈log₂P⌉(α + nβ + nγ), for long ones
// 2⌈log₂P⌉α + 2(P-1)/P·nβ + (P-1)/P·nγ.
func Reduce[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op, root int) error {
	if op.exact {
		return reproducibleReduce(ctx, c, send, recv, root)
	}
	var m meeting
	reduceCall(&m.call, c, send, recv, op, root)
	return run(ctx, c, &m)
}

// Ireduce is Reduce that returns at once.
func Ireduce[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op, root int) Request {
	var q call
	reduceCall(&q, c, send, recv, op, root)
	return start(c, &q)
}

func reduceCall[T mpi.Elem](q *call, c *mpi.Comm, send, recv []T, op Op, root int) {
	q.setVector(plan.Reduce, typeOf[T](), len(send))
	if q.setRoot(c, root) {
		q.setBuffers(mpi.Bytes(send), mpi.Bytes(recv))
		q.wantLen("recv", len(recv), len(send))
	} else {
		q.send = mpi.Bytes(send)
	}
	q.setOp(op, reflect.TypeFor[T]())
}

// Allreduce combines send of all ranks into recv on all ranks; both have the
// same length everywhere, and the result has the same bits everywhere. Cost for short vectors ⌈log₂P⌉(α + nβ + nγ),
// for long ones 2⌈log₂P⌉α + 2(P-1)/P·nβ + (P-1)/P·nγ for any P.
func Allreduce[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op) error {
	if op.exact {
		return reproducibleAllreduce(ctx, c, send, recv)
	}
	var m meeting
	setPair(&m.call, plan.Allreduce, send, recv, op)
	return run(ctx, c, &m)
}

// Iallreduce is Allreduce that returns at once.
func Iallreduce[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op) Request {
	var q call
	setPair(&q, plan.Allreduce, send, recv, op)
	return start(c, &q)
}

// setPair makes q a call on two vectors of the same length.
func setPair[T mpi.Elem](q *call, kind plan.Kind, send, recv []T, op Op) {
	q.setVector(kind, typeOf[T](), len(send))
	q.setBuffers(mpi.Bytes(send), mpi.Bytes(recv))
	q.wantLen("recv", len(recv), len(send))
	q.setOp(op, reflect.TypeFor[T]())
}

// Scan combines send of this rank and all lower ones into recv. Cost ⌈log₂P⌉(α + nβ + nγ), or a pipeline's for
// long vectors.
func Scan[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op) error {
	var m meeting
	setPair(&m.call, plan.Scan, send, recv, op)
	return run(ctx, c, &m)
}

// Iscan is Scan that returns at once.
func Iscan[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op) Request {
	var q call
	setPair(&q, plan.Scan, send, recv, op)
	return start(c, &q)
}

// Exscan combines send of all lower ranks into recv; on rank 0 recv is not
// touched. Cost as Scan.
func Exscan[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op) error {
	var m meeting
	setPair(&m.call, plan.Exscan, send, recv, op)
	return run(ctx, c, &m)
}

// Iexscan is Exscan that returns at once.
func Iexscan[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op) Request {
	var q call
	setPair(&q, plan.Exscan, send, recv, op)
	return start(c, &q)
}
