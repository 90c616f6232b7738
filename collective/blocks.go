package collective

import (
	"context"
	"reflect"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Gather collects send of every rank, equally long, in recv of the root, in
// the order of ranks; recv is ignored elsewhere. In place, the root's own block lies at its place in recv.
// Cost ⌈log₂P⌉α + (P-1)/P·nβ, n being the whole result.
func Gather[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, root int) error {
	var m meeting
	gatherCall(&m.call, c, send, recv, nil, root)
	return run(ctx, c, &m)
}

// Igather is Gather that returns at once.
func Igather[T mpi.Elem](c *mpi.Comm, send, recv []T, root int) Request {
	var q call
	gatherCall(&q, c, send, recv, nil, root)
	return start(c, &q)
}

// Gatherv is Gather with counts[r] elements from rank r. counts is the same
// on all ranks.
func Gatherv[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, counts []int, root int) error {
	var m meeting
	gatherCall(&m.call, c, send, recv, counts, root)
	m.counted(counts)
	return run(ctx, c, &m)
}

// Igatherv is Gatherv that returns at once; counts may be used again then.
func Igatherv[T mpi.Elem](c *mpi.Comm, send, recv []T, counts []int, root int) Request {
	var q call
	gatherCall(&q, c, send, recv, counts, root)
	q.counted(counts)
	return start(c, &q)
}

// counted refuses a call without the counts that it needs.
func (q *call) counted(counts []int) {
	if counts == nil {
		q.fail("counts is nil")
	}
}

func gatherCall[T mpi.Elem](q *call, c *mpi.Comm, send, recv []T, counts []int, root int) {
	q.setVector(plan.Gather, typeOf[T](), len(send))
	atRoot := q.setRoot(c, root)
	total, mine := len(send)*c.Size(), len(send)
	if counts != nil {
		q.count = 0
		total, mine = q.setCounts(c, counts)
	}
	if !atRoot {
		q.wantLen("send", len(send), mine)
		q.send = mpi.Bytes(send)
		return
	}
	setGatherBuffers(q, c, send, recv, total, mine)
}

// setGatherBuffers sets the buffers of a rank that receives all blocks. In place, send
// is recv or this rank's block in it.
func setGatherBuffers[T mpi.Elem](q *call, c *mpi.Comm, send, recv []T, total, mine int) {
	own := q.offset(c, mine)
	whole := len(send) > 0 && len(recv) > 0 && &send[0] == &recv[0] && len(send) == len(recv) && c.Size() > 1
	if whole {
		if q.counts[0] == nil {
			// The length of one block is not that of send then.
			if len(recv)%c.Size() != 0 {
				q.fail("recv of %d elements cannot hold equal blocks of %d ranks", len(recv), c.Size())
				return
			}
			q.count = len(recv) / c.Size()
		} else {
			q.wantLen("recv", len(recv), total)
		}
		q.inPlace = true
		q.recv = mpi.Bytes(recv)
		return
	}
	q.wantLen("send", len(send), mine)
	q.wantLen("recv", len(recv), total)
	q.send, q.recv = mpi.Bytes(send), mpi.Bytes(recv)
	switch {
	case q.err != nil || mine == 0:
	case &send[0] == &recv[own]:
		q.inPlace = true
	case memcopy.Overlap(q.send, q.recv):
		q.fail("send and recv overlap, and send is not this rank's block of recv")
	}
}

// offset is where this rank's block lies among all blocks.
func (q *call) offset(c *mpi.Comm, mine int) int {
	if q.counts[0] == nil {
		return c.Rank() * mine
	}
	at := 0
	for _, n := range q.counts[0][:c.Rank()] {
		at += n
	}
	return at
}

// Allgather collects send of every rank, equally long, in recv of all ranks,
// in the order of ranks. In place, send is recv or this rank's block of it.
// Cost ⌈log₂P⌉α + (P-1)/P·nβ, n being the whole result.
func Allgather[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T) error {
	var m meeting
	allgatherCall(&m.call, c, send, recv, nil)
	return run(ctx, c, &m)
}

// Iallgather is Allgather that returns at once.
func Iallgather[T mpi.Elem](c *mpi.Comm, send, recv []T) Request {
	var q call
	allgatherCall(&q, c, send, recv, nil)
	return start(c, &q)
}

// Allgatherv is Allgather with counts[r] elements from rank r; counts is the
// same on all ranks.
func Allgatherv[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, counts []int) error {
	var m meeting
	allgatherCall(&m.call, c, send, recv, counts)
	m.counted(counts)
	return run(ctx, c, &m)
}

// Iallgatherv is Allgatherv that returns at once; counts may be used again then.
func Iallgatherv[T mpi.Elem](c *mpi.Comm, send, recv []T, counts []int) Request {
	var q call
	allgatherCall(&q, c, send, recv, counts)
	q.counted(counts)
	return start(c, &q)
}

func allgatherCall[T mpi.Elem](q *call, c *mpi.Comm, send, recv []T, counts []int) {
	q.setVector(plan.Allgather, typeOf[T](), len(send))
	total, mine := len(send)*c.Size(), len(send)
	if counts != nil {
		q.count = 0
		total, mine = q.setCounts(c, counts)
	}
	setGatherBuffers(q, c, send, recv, total, mine)
}

// Scatter hands out send of the root in equal blocks, in the order of ranks;
// each rank's goes to recv. send is ignored elsewhere. In place (recv is nil,
// send, or its own block of send at the root), the root keeps its block where it is. Cost as Gather.
func Scatter[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, root int) error {
	var m meeting
	scatterCall(&m.call, c, send, recv, nil, root)
	return run(ctx, c, &m)
}

// Iscatter is Scatter that returns at once.
func Iscatter[T mpi.Elem](c *mpi.Comm, send, recv []T, root int) Request {
	var q call
	scatterCall(&q, c, send, recv, nil, root)
	return start(c, &q)
}

// Scatterv is Scatter with counts[r] elements to rank r; counts is the same on all ranks.
func Scatterv[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, counts []int, root int) error {
	var m meeting
	scatterCall(&m.call, c, send, recv, counts, root)
	m.counted(counts)
	return run(ctx, c, &m)
}

// Iscatterv is Scatterv that returns at once; counts may be used again then.
func Iscatterv[T mpi.Elem](c *mpi.Comm, send, recv []T, counts []int, root int) Request {
	var q call
	scatterCall(&q, c, send, recv, counts, root)
	q.counted(counts)
	return start(c, &q)
}

func scatterCall[T mpi.Elem](q *call, c *mpi.Comm, send, recv []T, counts []int, root int) {
	q.setVector(plan.Scatter, typeOf[T](), len(recv))
	atRoot := q.setRoot(c, root)
	total, mine := len(recv)*c.Size(), len(recv)
	whole := len(send) > 0 && len(recv) == len(send) && &send[0] == &recv[0] && c.Size() > 1
	kept := atRoot && (recv == nil || whole)
	switch {
	case counts != nil:
		q.count = 0
		total, mine = q.setCounts(c, counts)
	case kept:
		q.count = len(send) / c.Size()
		total = q.count * c.Size()
	}
	if !atRoot {
		q.wantLen("recv", len(recv), mine)
		q.recv = mpi.Bytes(recv)
		return
	}
	q.wantLen("send", len(send), total)
	q.send = mpi.Bytes(send)
	if kept {
		q.inPlace = true
		return
	}
	q.wantLen("recv", len(recv), mine)
	q.recv = mpi.Bytes(recv)
	switch own := q.offset(c, mine); {
	case q.err != nil || mine == 0:
	case &recv[0] == &send[own]:
		q.inPlace = true
	case memcopy.Overlap(q.send, q.recv):
		q.fail("send and recv overlap, and recv is not this rank's block of send")
	}
}

// ReduceScatter combines send of all ranks, of the same length everywhere,
// and leaves counts[r] elements of the result in recv of rank r: the first in rank
// 0, and so on. counts is the same on all ranks. In place, the result is at the beginning of
// the slice. Cost ⌈log₂P⌉α + (P-1)/P·(nβ + nγ) for any P.
func ReduceScatter[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, counts []int, op Op) error {
	var m meeting
	reduceScatterCall(&m.call, c, send, recv, counts, op)
	m.counted(counts)
	return run(ctx, c, &m)
}

// IreduceScatter is ReduceScatter that returns at once; counts may be used again then.
func IreduceScatter[T mpi.Elem](c *mpi.Comm, send, recv []T, counts []int, op Op) Request {
	var q call
	reduceScatterCall(&q, c, send, recv, counts, op)
	q.counted(counts)
	return start(c, &q)
}

// ReduceScatterBlock is ReduceScatter with equal counts: recv is one block, send has one per rank.
func ReduceScatterBlock[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, op Op) error {
	var m meeting
	reduceScatterCall(&m.call, c, send, recv, nil, op)
	return run(ctx, c, &m)
}

// IreduceScatterBlock is ReduceScatterBlock that returns at once.
func IreduceScatterBlock[T mpi.Elem](c *mpi.Comm, send, recv []T, op Op) Request {
	var q call
	reduceScatterCall(&q, c, send, recv, nil, op)
	return start(c, &q)
}

func reduceScatterCall[T mpi.Elem](q *call, c *mpi.Comm, send, recv []T, counts []int, op Op) {
	q.setVector(plan.ReduceScatter, typeOf[T](), len(send)/c.Size())
	q.setOp(op, reflect.TypeFor[T]())
	total, mine := q.count*c.Size(), q.count
	if counts != nil {
		q.count = 0
		total, mine = q.setCounts(c, counts)
	}
	q.wantLen("send", len(send), total)
	q.send, q.recv = mpi.Bytes(send), mpi.Bytes(recv)
	switch {
	case len(send) > 0 && len(recv) > 0 && &send[0] == &recv[0]:
		if len(recv) >= mine { // also recv = send[:mine]
			q.inPlace = true
			q.recv = q.send
			return
		}
	case memcopy.Overlap(q.send, q.recv) && len(send) > 0 && len(recv) > 0:
		q.fail("send and recv overlap without beginning together")
	}
	q.wantLen("recv", len(recv), mine)
}

// Alltoall sends block r of send to rank r and receives block r of recv from
// it; all blocks are equally long. Cost for short blocks ⌈log₂P⌉(α + nβ/2), n being all blocks of one rank,
// for long ones (P-1)α + (P-1)/P·nβ.
func Alltoall[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T) error {
	var m meeting
	alltoallCall(&m.call, c, send, recv)
	return run(ctx, c, &m)
}

// Ialltoall is Alltoall that returns at once.
func Ialltoall[T mpi.Elem](c *mpi.Comm, send, recv []T) Request {
	var q call
	alltoallCall(&q, c, send, recv)
	return start(c, &q)
}

func alltoallCall[T mpi.Elem](q *call, c *mpi.Comm, send, recv []T) {
	q.setVector(plan.Alltoall, typeOf[T](), len(send)/c.Size())
	if len(send)%c.Size() != 0 {
		q.fail("send of %d elements cannot be cut into equal blocks for %d ranks", len(send), c.Size())
	}
	q.setBuffers(mpi.Bytes(send), mpi.Bytes(recv))
	q.wantLen("recv", len(recv), len(send))
}

// Alltoallv is Alltoall with sendCounts[r] elements to rank r, and
// recvCounts[r] from it: what rank r sends to this rank, for this rank itself the same in both. Blocks
// follow one another. In place, both lists must be equal. Cost (P-1)α + nβ.
func Alltoallv[T mpi.Elem](ctx context.Context, c *mpi.Comm, send []T, sendCounts []int, recv []T, recvCounts []int) error {
	var m meeting
	alltoallvCall(&m.call, c, send, sendCounts, recv, recvCounts)
	return run(ctx, c, &m)
}

// Ialltoallv is Alltoallv that returns at once; the counts may be used again then.
func Ialltoallv[T mpi.Elem](c *mpi.Comm, send []T, sendCounts []int, recv []T, recvCounts []int) Request {
	var q call
	alltoallvCall(&q, c, send, sendCounts, recv, recvCounts)
	return start(c, &q)
}

func alltoallvCall[T mpi.Elem](q *call, c *mpi.Comm, send []T, sendCounts []int, recv []T, recvCounts []int) {
	q.setVector(plan.Alltoall, typeOf[T](), 0)
	in, _ := q.setCounts(c, recvCounts)
	out, _ := q.setCounts(c, sendCounts)
	q.counts = [3][]int{nil, sendCounts, recvCounts}
	q.hash = hashCounts(sendCounts, recvCounts)
	q.wantLen("send", len(send), out)
	q.wantLen("recv", len(recv), in)
	q.setBuffers(mpi.Bytes(send), mpi.Bytes(recv))
	if me := c.Rank(); q.err == nil && sendCounts[me] != recvCounts[me] {
		q.fail("%d elements go from rank %d to itself, but %d come from it", sendCounts[me], me, recvCounts[me])
	}
	if q.inPlace {
		for r := range sendCounts {
			if q.err == nil && sendCounts[r] != recvCounts[r] {
				q.fail("in place, but %d elements go to rank %d and %d come from it", sendCounts[r], r, recvCounts[r])
			}
		}
	}
}
