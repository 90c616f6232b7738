package collective

import (
	"math"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Library says when collectives go to the system's MPI library, where the
// communicator stands on one. With Config.CheckAll none do.
type Library uint8

const (
	// LibraryAuto asks the site table, which may name the plan "library"; without a
	// rule there, collectives within a host are Fisterra's own, and those across hosts the library's, which
	// may know the network's switches.
	LibraryAuto Library = iota
	// LibraryNever always runs Fisterra's own plans.
	LibraryNever
	// LibraryAlways leaves to the library whatever it has: not Alltoallv, nor reductions by operators of the program's own, of BF16
	// and FP16, or by Min and Max of floats, since MPI says nothing of NaNs, nor more than 2³¹-1 elements.
	LibraryAlways
)

// LibraryPlan names the library's collective where plans are named, as in a site table.
const LibraryPlan = "library"

// What MPI calls our types and operators; never changed.
var (
	libraryKinds = map[kernel.Type]mpi.ElemKind{
		kernel.Int8: mpi.KindOf[int8](), kernel.Int16: mpi.KindOf[int16](), kernel.Int32: mpi.KindOf[int32](), kernel.Int64: mpi.KindOf[int64](),
		kernel.Uint8: mpi.KindOf[uint8](), kernel.Uint16: mpi.KindOf[uint16](), kernel.Uint32: mpi.KindOf[uint32](), kernel.Uint64: mpi.KindOf[uint64](),
		kernel.Float32: mpi.KindOf[float32](), kernel.Float64: mpi.KindOf[float64](),
		kernel.Complex64: mpi.KindOf[complex64](), kernel.Complex128: mpi.KindOf[complex128](),
		// Moved as what they are kept in; MPI cannot reduce them.
		kernel.BFloat16: mpi.KindOf[uint16](), kernel.Float16: mpi.KindOf[uint16](),
	}
	libraryOps = map[kernel.Op]mpi.ReduceOp{
		kernel.Sum: mpi.ReduceSum, kernel.Prod: mpi.ReduceProd, kernel.Min: mpi.ReduceMin, kernel.Max: mpi.ReduceMax,
		kernel.And: mpi.ReduceBitAnd, kernel.Or: mpi.ReduceBitOr, kernel.Xor: mpi.ReduceBitXor,
	}
)

// libraryHas reports whether the system's MPI library has the collective. All ranks get the same answer.
// One that starts some time after it got its number is not for the library: collectives of other goroutines may have
// started meanwhile, on some of the ranks, and the library has to get all in the same order on all of them.
func libraryHas(c *mpi.Comm, e *entry) bool {
	_, ok := c.Native()
	return ok && !e.late && e.libraryTakes()
}

// libraryTakes reports whether MPI defines the collective as we do, and can count its elements.
func (e *entry) libraryTakes() bool {
	elements := e.count
	for _, n := range e.counts[0] {
		elements += n
	}
	if elements > math.MaxInt32 {
		return false
	}
	if !e.kind.Reduces() {
		return e.counts[1] == nil // its alltoallv is never in place, and ranks may differ in that
	}
	if e.op.user != nil {
		return false
	}
	switch e.typ.kind {
	case kernel.BFloat16, kernel.Float16:
		return false
	case kernel.Float32, kernel.Float64:
		if e.op.kernel == kernel.Min || e.op.kernel == kernel.Max {
			return false // MPI leaves open what becomes of a NaN
		}
	}
	return mpi.Reducible(libraryKinds[e.typ.kind], libraryOps[e.op.kernel])
}

// whyLibrary decides between the library and a plan: it is empty where a plan does it. The state is locked.
func (f *Config) whyLibrary(p *plan.Problem) string {
	switch f.Library {
	case LibraryNever:
		return ""
	case LibraryAlways:
		return "forced"
	}
	if _, forced := f.Force[p.Kind]; forced {
		return ""
	}
	if f.Site != nil {
		if r, ok := f.Site.rule(p); ok {
			if r.Plan == LibraryPlan {
				return "site table " + f.Site.Name
			}
			return ""
		}
	}
	if p.Nodes != nil && len(p.Nodes.Members) > 1 {
		return "across hosts"
	}
	return ""
}

// callLibrary starts the library's collective. The state is locked, so that
// all ranks start theirs in the same order.
func (x *execution) callLibrary(send, recv []byte) mpi.Request {
	e := x.entry
	n, _ := x.shadow.Native()
	kind, op, counts := libraryKinds[e.typ.kind], libraryOps[e.op.kernel], e.counts[0]
	send, recv = filled(send), filled(recv)
	switch {
	case !e.inPlace, e.kind == plan.Scatter:
	case e.kind == plan.Alltoall: // to MPI that would be another call, and the other ranks may not be in place
		send = filled(x.keepInput(send))
	default:
		send = nil
	}
	switch e.kind {
	case plan.Barrier:
		return n.Barrier()
	case plan.Bcast:
		return n.Bcast(recv, kind, e.root)
	case plan.Reduce:
		return n.Reduce(send, recv, kind, op, e.root)
	case plan.Allreduce:
		return n.Allreduce(send, recv, kind, op)
	case plan.Scan:
		return n.Scan(send, recv, kind, op)
	case plan.Exscan:
		return n.Exscan(send, recv, kind, op)
	case plan.ReduceScatter:
		if counts != nil {
			return n.ReduceScatter(send, recv, counts, kind, op)
		}
		return n.ReduceScatterBlock(send, recv, kind, op)
	case plan.Gather:
		if counts != nil {
			return n.Gatherv(send, recv, counts, kind, e.root)
		}
		return n.Gather(send, recv, kind, e.root)
	case plan.Allgather:
		if counts != nil {
			return n.Allgatherv(send, recv, counts, kind)
		}
		return n.Allgather(send, recv, kind)
	case plan.Scatter:
		if e.inPlace {
			recv = nil
		}
		if counts != nil {
			return n.Scatterv(send, recv, counts, kind, e.root)
		}
		return n.Scatter(send, recv, kind, e.root)
	}
	return n.Alltoall(send, recv, kind)
}

// keepInput is a copy of an input that the result overwrites, in memory that later calls use again.
func (x *execution) keepInput(send []byte) []byte {
	x.input = append(x.input[:0], send...)
	return x.input
}

// filled makes an empty buffer one that is not nil: nil means in place.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
