package mpi

import (
	"reflect"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// ElemKind is the type of the elements of a library's collective.
type ElemKind = native.Type

// ReduceOp is a reduction that MPI has built in.
type ReduceOp = native.Op

// The reductions of MPI.
const (
	ReduceSum    = native.Sum
	ReduceProd   = native.Prod
	ReduceMin    = native.Min
	ReduceMax    = native.Max
	ReduceBitAnd = native.BitAnd
	ReduceBitOr  = native.BitOr
	ReduceBitXor = native.BitXor
)

// KindOf is the kind of T's elements, by T's underlying type. A type with an arithmetic
// of its own (a 16-bit float kept in a uint16) has no kind in MPI, which only its owner can know.
func KindOf[T Elem]() ElemKind {
	var zero T
	wide := func(one, two, four, eight ElemKind) ElemKind {
		switch unsafe.Sizeof(zero) {
		case 1:
			return one
		case 2:
			return two
		case 4:
			return four
		}
		return eight
	}
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Float32:
		return native.Float32
	case reflect.Float64:
		return native.Float64
	case reflect.Complex64:
		return native.Complex64
	case reflect.Complex128:
		return native.Complex128
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return wide(native.Int8, native.Int16, native.Int32, native.Int64)
	}
	return wide(native.Uint8, native.Uint16, native.Uint32, native.Uint64)
}

// Reducible reports whether MPI defines o for elements of kind k: no order
// on complex numbers, bits only of integers.
func Reducible(k ElemKind, o ReduceOp) bool { return native.Reducible(k, o) }

// NativeCollectives are the collectives of the system's MPI library on one
// communicator. Each method starts one and returns at once; the Request is
// waited for or tested like a message's, and allocates nothing. All ranks start the same
// ones in the same order, and the caller sees to it that those of several goroutines do not mix.
//
// Buffers are bytes of elements of kind k and belong to the library until the
// request has finished; counts are in elements, blocks lie in rank order. A nil send means in place:
// the input is in recv. Lengths that do not fit are ErrMismatch, more than 2³¹−1
// elements in one call ErrUnsupported.
//
// If the ranks' lengths differ the results are undefined, as in MPI: where Open MPI moves long
// messages by itself, within a host or over TCP, it writes past the end of a rank's buffer that is too
// short. Messages and Fisterra's own collectives have no such danger.
//
// MPI cannot take a collective back: Cancel does nothing, and a Wait whose context ends first
// returns ErrInFlight.
type NativeCollectives struct{ c *Comm }

// Native returns the library's collectives on this communicator, and whether
// the device has any.
func (c *Comm) Native() (NativeCollectives, bool) {
	_, ok := c.dev.(*nativeDevice)
	return NativeCollectives{c}, ok
}

// start begins a collective by begin.
func (n NativeCollectives) start(begin func(*native.Comm, *native.Request) error) Request {
	d := n.c.dev.(*nativeDevice)
	o, r := d.get(opCollective, n.c)
	comm, err := d.comm(n.c)
	if err == nil {
		err = begin(comm, r)
	}
	if err != nil {
		err = d.describe(o, &Status{}, err)
		d.put(o, o.gen)
		return failed(Status{}, err)
	}
	return Request{o: o, gen: o.gen}
}

// Barrier finishes when all ranks have started it.
func (n NativeCollectives) Barrier() Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Ibarrier(r) })
}

// Bcast copies root's buf to all ranks.
func (n NativeCollectives) Bcast(buf []byte, k ElemKind, root int) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Ibcast(r, buf, k, root) })
}

// Reduce combines all ranks' send into root's recv; only root may be in place.
func (n NativeCollectives) Reduce(send, recv []byte, k ElemKind, o ReduceOp, root int) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Ireduce(r, send, recv, k, o, root) })
}

// Allreduce combines all ranks' send into everybody's recv.
func (n NativeCollectives) Allreduce(send, recv []byte, k ElemKind, o ReduceOp) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Iallreduce(r, send, recv, k, o) })
}

// Scan combines the send of ranks 0 to this one.
func (n NativeCollectives) Scan(send, recv []byte, k ElemKind, o ReduceOp) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Iscan(r, send, recv, k, o) })
}

// Exscan combines the send of the ranks below this one; rank 0's recv is not written.
func (n NativeCollectives) Exscan(send, recv []byte, k ElemKind, o ReduceOp) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Iexscan(r, send, recv, k, o) })
}

// ReduceScatter combines all ranks' send and leaves rank i with its
// counts[i] elements.
func (n NativeCollectives) ReduceScatter(send, recv []byte, counts []int, k ElemKind, o ReduceOp) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.IreduceScatter(r, send, recv, counts, k, o) })
}

// ReduceScatterBlock is ReduceScatter with blocks of one length.
func (n NativeCollectives) ReduceScatterBlock(send, recv []byte, k ElemKind, o ReduceOp) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.IreduceScatterBlock(r, send, recv, k, o) })
}

// Allgather puts rank i's send into block i of everybody's recv.
func (n NativeCollectives) Allgather(send, recv []byte, k ElemKind) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Iallgather(r, send, recv, k) })
}

// Allgatherv is Allgather with counts[i] elements from rank i.
func (n NativeCollectives) Allgatherv(send, recv []byte, counts []int, k ElemKind) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Iallgatherv(r, send, recv, counts, k) })
}

// Gather puts rank i's send into block i of root's recv; only root may be in place.
func (n NativeCollectives) Gather(send, recv []byte, k ElemKind, root int) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Igather(r, send, recv, k, root) })
}

// Gatherv is Gather with counts[i] elements from rank i; counts matter at root only.
func (n NativeCollectives) Gatherv(send, recv []byte, counts []int, k ElemKind, root int) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Igatherv(r, send, recv, counts, k, root) })
}

// Scatter puts block i of root's send into rank i's recv. A nil recv at root
// leaves its block where it is.
func (n NativeCollectives) Scatter(send, recv []byte, k ElemKind, root int) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Iscatter(r, send, recv, k, root) })
}

// Scatterv is Scatter with counts[i] elements for rank i; counts matter at root only.
func (n NativeCollectives) Scatterv(send, recv []byte, counts []int, k ElemKind, root int) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Iscatterv(r, send, recv, counts, k, root) })
}

// Alltoall puts block j of rank i's send into block i of rank j's recv.
func (n NativeCollectives) Alltoall(send, recv []byte, k ElemKind) Request {
	return n.start(func(c *native.Comm, r *native.Request) error { return c.Ialltoall(r, send, recv, k) })
}

// Alltoallv sends sendCounts[j] elements to each rank j and receives
// recvCounts[i] from each rank i. It is never in place.
func (n NativeCollectives) Alltoallv(send, recv []byte, sendCounts, recvCounts []int, k ElemKind) Request {
	return n.start(func(c *native.Comm, r *native.Request) error {
		return c.Ialltoallv(r, send, recv, sendCounts, recvCounts, k)
	})
}
