package native

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// The library's own collectives, started nonblocking and waited for like any other
// request. All ranks of the communicator call the same ones in the same order. Buffers
// are given as bytes of elements of type t and belong to the library until the request
// is complete; counts and displacements are in elements. A nil send means in place: the
// input is in recv, where the operation defines it.
//
// More than 2³¹-1 elements in one call are refused with ErrUnsupported.

func address(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// collect readies r and b for a collective over buffers recv and send.
func (c *Comm) collect(r *Request, op opcode, fn uintptr, send, recv []byte) (clib.Block, error) {
	b := clib.Block{Fn: fn}
	c.world.lock()
	defer c.world.mu.Unlock()
	if err := r.begin(c, op, address(recv), len(recv), AnySource, AnyTag); err != nil {
		return b, err
	}
	r.from, r.fromBytes = address(send), len(send)
	return b, nil
}

// input is the send argument: the address, or MPI_IN_PLACE for nil.
func (c *Comm) input(send []byte) uintptr {
	if send == nil {
		return c.world.abi.inPlace
	}
	return uintptr(address(send))
}

func (c *Comm) elements(r *Request, t Type, lengthBytes int) (uintptr, error) {
	if t >= types {
		return 0, r.fail(0, ErrUnsupported, t.String())
	}
	n := lengthBytes / t.Bytes()
	if n > c.world.maxCount {
		return 0, r.fail(0, ErrUnsupported, fmt.Sprintf("%d elements in one collective, at most %d", n, c.world.maxCount))
	}
	return uintptr(n), nil
}

func (c *Comm) root(r *Request, root int) error {
	if root < 0 || root >= c.size {
		r.peer = root
		return r.fail(0, ErrRank, fmt.Sprintf("root %d is not in 0..%d", root, c.size-1))
	}
	return nil
}

func (c *Comm) reduction(r *Request, t Type, o Op) error {
	if !Reducible(t, o) {
		return r.fail(0, ErrUnsupported, fmt.Sprintf("%v of %v", o, t))
	}
	return nil
}

// fits refuses a buffer that is not as long as the operation will read or write.
func (r *Request) fits(what string, haveBytes, wantBytes int) error {
	if haveBytes == wantBytes {
		return nil
	}
	return r.fail(0, ErrLength, fmt.Sprintf("%s has %d B, want %d B", what, haveBytes, wantBytes))
}

// send arguments (buffer, count, type) at index i.
func (c *Comm) put(b *clib.Block, i int, buffer, count uintptr, t Type) {
	b.A[i], b.A[i+1], b.A[i+2] = buffer, count, uintptr(c.world.abi.types[t])
}

// tail sets what every call ends with: communicator and request.
func (c *Comm) tail(r *Request, b *clib.Block, i int) error {
	b.A[i] = uintptr(c.handle)
	b.A[i+1] = uintptr(unsafe.Pointer(&r.request))
	return r.post(b)
}

// Ibarrier completes once all ranks have started it.
func (c *Comm) Ibarrier(r *Request) error {
	b, err := c.collect(r, opIbarrier, c.world.fn.ibarrier, nil, nil)
	if err != nil {
		return err
	}
	return c.tail(r, &b, 0)
}

// Ibcast copies root's buf to all ranks.
func (c *Comm) Ibcast(r *Request, buf []byte, t Type, root int) error {
	b, err := c.collect(r, opIbcast, c.world.fn.ibcast, nil, buf)
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, len(buf))
	if err == nil {
		err = c.root(r, root)
	}
	if err != nil {
		return err
	}
	c.put(&b, 0, uintptr(address(buf)), n, t)
	b.A[3] = uintptr(root)
	return c.tail(r, &b, 4)
}

// Ireduce combines all ranks' send into root's recv; only root's recv is written, and
// only root may be in place.
func (c *Comm) Ireduce(r *Request, send, recv []byte, t Type, o Op, root int) error {
	b, err := c.collect(r, opIreduce, c.world.fn.ireduce, send, recv)
	if err != nil {
		return err
	}
	lengthBytes := len(send)
	if send == nil {
		lengthBytes = len(recv)
	}
	n, err := c.elements(r, t, lengthBytes)
	if err == nil {
		err = c.root(r, root)
	}
	if err == nil && c.rank == root {
		err = r.fits("recv", len(recv), lengthBytes)
	}
	if err == nil {
		err = c.reduction(r, t, o)
	}
	if err != nil {
		return err
	}
	b.A[0], b.A[1] = c.input(send), uintptr(address(recv))
	b.A[2], b.A[3], b.A[4], b.A[5] = n, uintptr(c.world.abi.types[t]), uintptr(c.world.abi.ops[o]), uintptr(root)
	return c.tail(r, &b, 6)
}

// Iallreduce combines all ranks' send into everybody's recv.
func (c *Comm) Iallreduce(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIallreduce, c.world.fn.iallreduce, send, recv, t, o)
}

// Iscan combines the send of ranks 0 to this one.
func (c *Comm) Iscan(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIscan, c.world.fn.iscan, send, recv, t, o)
}

// Iexscan combines the send of the ranks below this one; rank 0's recv is not written.
func (c *Comm) Iexscan(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIexscan, c.world.fn.iexscan, send, recv, t, o)
}

// IreduceScatterBlock combines all ranks' send, which holds one block per rank, and
// leaves each rank with its own block in recv.
func (c *Comm) IreduceScatterBlock(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIreduceScatterBlock, c.world.fn.ireduceScatterBlock, send, recv, t, o)
}

// prefix is the shape (send, recv, count, type, op, comm, request).
func (c *Comm) prefix(r *Request, op opcode, fn uintptr, send, recv []byte, t Type, o Op) error {
	b, err := c.collect(r, op, fn, send, recv)
	if err != nil {
		return err
	}
	lengthBytes, inputBytes := len(recv), len(recv)
	if op == opIreduceScatterBlock {
		inputBytes *= c.size
		if send == nil {
			lengthBytes /= c.size // in place, recv holds all blocks
		}
	}
	n, err := c.elements(r, t, lengthBytes)
	if err == nil && send != nil {
		err = r.fits("send", len(send), inputBytes)
	}
	if err == nil {
		err = c.reduction(r, t, o)
	}
	if err != nil {
		return err
	}
	b.A[0], b.A[1] = c.input(send), uintptr(address(recv))
	b.A[2], b.A[3], b.A[4] = n, uintptr(c.world.abi.types[t]), uintptr(c.world.abi.ops[o])
	return c.tail(r, &b, 5)
}

// IreduceScatter is IreduceScatterBlock with counts[i] elements for rank i.
func (c *Comm) IreduceScatter(r *Request, send, recv []byte, counts []int, t Type, o Op) error {
	b, err := c.collect(r, opIreduceScatter, c.world.fn.ireduceScatter, send, recv)
	if err == nil {
		err = c.reduction(r, t, o)
	}
	if err == nil {
		whole, own := send, recv
		if send == nil {
			whole, own = recv, nil
		}
		if err = r.keepCounts(t, list{counts, len(whole)}); err == nil && own != nil {
			err = r.fits("recv", len(own), counts[c.rank]*t.Bytes())
		}
	}
	if err != nil {
		return err
	}
	b.A[0], b.A[1] = c.input(send), uintptr(address(recv))
	b.A[2], b.A[3], b.A[4] = uintptr(unsafe.Pointer(&r.counts[0])), uintptr(c.world.abi.types[t]), uintptr(c.world.abi.ops[o])
	return c.tail(r, &b, 5)
}

// Iallgather puts rank i's send into block i of everybody's recv.
func (c *Comm) Iallgather(r *Request, send, recv []byte, t Type) error {
	return c.blocks(r, opIallgather, c.world.fn.iallgather, send, recv, len(recv)/c.size, t)
}

// Ialltoall puts block j of rank i's send into block i of rank j's recv.
func (c *Comm) Ialltoall(r *Request, send, recv []byte, t Type) error {
	return c.blocks(r, opIalltoall, c.world.fn.ialltoall, send, recv, len(recv)/c.size, t)
}

// blocks is the shape (send, count, type, recv, count, type, comm, request).
func (c *Comm) blocks(r *Request, op opcode, fn uintptr, send, recv []byte, blockBytes int, t Type) error {
	b, err := c.collect(r, op, fn, send, recv)
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, blockBytes)
	inputBytes := blockBytes
	if op == opIalltoall {
		inputBytes *= c.size
	}
	if err == nil {
		err = r.fits("recv", len(recv), blockBytes*c.size)
	}
	if err == nil && send != nil {
		err = r.fits("send", len(send), inputBytes)
	}
	if err != nil {
		return err
	}
	c.put(&b, 0, c.input(send), n, t)
	c.put(&b, 3, uintptr(address(recv)), n, t)
	return c.tail(r, &b, 6)
}

// Igather puts rank i's send into block i of root's recv. Root alone may be in place:
// its own block is in recv already.
func (c *Comm) Igather(r *Request, send, recv []byte, t Type, root int) error {
	blockBytes, in := len(send), uintptr(address(send))
	if c.rank == root {
		blockBytes = len(recv) / c.size
		in = c.input(send)
	}
	return c.rooted(r, opIgather, c.world.fn.igather, in, uintptr(address(recv)), send, recv, blockBytes, t, root)
}

// Iscatter puts block i of root's send into rank i's recv. A nil recv at root leaves
// its own block where it is.
func (c *Comm) Iscatter(r *Request, send, recv []byte, t Type, root int) error {
	blockBytes, out := len(recv), uintptr(address(recv))
	if c.rank == root {
		blockBytes = len(send) / c.size
		if recv == nil {
			out = c.world.abi.inPlace
		}
	}
	return c.rooted(r, opIscatter, c.world.fn.iscatter, uintptr(address(send)), out, send, recv, blockBytes, t, root)
}

// rooted is the shape (send, count, type, recv, count, type, root, comm, request).
func (c *Comm) rooted(r *Request, op opcode, fn, in, out uintptr, send, recv []byte, blockBytes int, t Type, root int) error {
	b, err := c.collect(r, op, fn, send, recv)
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, blockBytes)
	if err == nil {
		err = c.root(r, root)
	}
	if err == nil && c.rank == root {
		all, one := recv, send
		if op == opIscatter {
			all, one = send, recv
		}
		if err = r.fits("root's buffer", len(all), blockBytes*c.size); err == nil && one != nil {
			err = r.fits("root's block", len(one), blockBytes)
		}
	}
	if err != nil {
		return err
	}
	c.put(&b, 0, in, n, t)
	c.put(&b, 3, out, n, t)
	b.A[6] = uintptr(root)
	return c.tail(r, &b, 7)
}

// Iallgatherv is Iallgather with counts[i] elements from rank i.
func (c *Comm) Iallgatherv(r *Request, send, recv []byte, counts []int, t Type) error {
	b, err := c.collect(r, opIallgatherv, c.world.fn.iallgatherv, send, recv)
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, len(send))
	if err == nil {
		err = r.keepCounts(t, list{counts, len(recv)})
	}
	if err == nil && send != nil {
		err = r.fits("send", len(send), counts[c.rank]*t.Bytes())
	}
	if err != nil {
		return err
	}
	c.put(&b, 0, c.input(send), n, t)
	b.A[3], b.A[4], b.A[5], b.A[6] = uintptr(address(recv)), uintptr(unsafe.Pointer(&r.counts[0])),
		uintptr(unsafe.Pointer(&r.counts[len(counts)])), uintptr(c.world.abi.types[t])
	return c.tail(r, &b, 7)
}

// Igatherv is Igather with counts[i] elements from rank i; counts matter at root only.
func (c *Comm) Igatherv(r *Request, send, recv []byte, counts []int, t Type, root int) error {
	b, err := c.collect(r, opIgatherv, c.world.fn.igatherv, send, recv)
	if err == nil {
		err = c.root(r, root)
	}
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, len(send))
	in := uintptr(address(send))
	if err == nil && c.rank == root {
		in = c.input(send)
		if err = r.keepCounts(t, list{counts, len(recv)}); err == nil && send != nil {
			err = r.fits("send", len(send), counts[root]*t.Bytes())
		}
	}
	if err != nil {
		return err
	}
	c.put(&b, 0, in, n, t)
	b.A[3], b.A[6], b.A[7] = uintptr(address(recv)), uintptr(c.world.abi.types[t]), uintptr(root)
	if c.rank == root {
		b.A[4], b.A[5] = uintptr(unsafe.Pointer(&r.counts[0])), uintptr(unsafe.Pointer(&r.counts[len(counts)]))
	}
	return c.tail(r, &b, 8)
}

// Iscatterv is Iscatter with counts[i] elements for rank i; counts matter at root only.
func (c *Comm) Iscatterv(r *Request, send, recv []byte, counts []int, t Type, root int) error {
	b, err := c.collect(r, opIscatterv, c.world.fn.iscatterv, send, recv)
	if err == nil {
		err = c.root(r, root)
	}
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, len(recv))
	if err == nil && c.rank == root {
		if err = r.keepCounts(t, list{counts, len(send)}); err == nil && recv != nil {
			err = r.fits("recv", len(recv), counts[root]*t.Bytes())
		}
	}
	if err != nil {
		return err
	}
	b.A[0], b.A[3], b.A[7] = uintptr(address(send)), uintptr(c.world.abi.types[t]), uintptr(root)
	c.put(&b, 4, uintptr(address(recv)), n, t)
	if c.rank == root {
		b.A[1], b.A[2] = uintptr(unsafe.Pointer(&r.counts[0])), uintptr(unsafe.Pointer(&r.counts[len(counts)]))
		if recv == nil {
			b.A[4] = c.world.abi.inPlace
		}
	}
	return c.tail(r, &b, 8)
}

// Ialltoallv sends sendCounts[j] elements to each rank j and receives recvCounts[i]
// from each rank i, blocks packed in rank order on both sides. It is never in place.
func (c *Comm) Ialltoallv(r *Request, send, recv []byte, sendCounts, recvCounts []int, t Type) error {
	b, err := c.collect(r, opIalltoallv, c.world.fn.ialltoallv, send, recv)
	if err == nil {
		err = r.keepCounts(t, list{sendCounts, len(send)}, list{recvCounts, len(recv)})
	}
	if err != nil {
		return err
	}
	n := c.size
	at := func(i int) uintptr { return uintptr(unsafe.Pointer(&r.counts[i*n])) }
	datatype := uintptr(c.world.abi.types[t])
	b.A[0], b.A[1], b.A[2], b.A[3] = uintptr(address(send)), at(0), at(1), datatype
	b.A[4], b.A[5], b.A[6], b.A[7] = uintptr(address(recv)), at(2), at(3), datatype
	return c.tail(r, &b, 8)
}

// list is the counts of all ranks' blocks and the length of the buffer that holds them.
type list struct {
	counts      []int
	lengthBytes int
}

// keepCounts stores counts and their displacements, as C ints, in r: for each list its
// counts and then where each block starts.
func (r *Request) keepCounts(t Type, lists ...list) error {
	if t >= types {
		return r.fail(0, ErrUnsupported, t.String())
	}
	r.counts = r.counts[:0]
	for _, l := range lists {
		if len(l.counts) != r.comm.size {
			return r.fail(0, ErrLength, fmt.Sprintf("%d counts for %d ranks", len(l.counts), r.comm.size))
		}
		total := 0
		for _, n := range l.counts {
			if total += n; n < 0 || total > math.MaxInt32 {
				return r.fail(0, ErrUnsupported, fmt.Sprintf("counts %v: each must be at least 0, all together at most %d", l.counts, math.MaxInt32))
			}
			r.counts = append(r.counts, int32(n))
		}
		if err := r.fits("buffer of all blocks", l.lengthBytes, total*t.Bytes()); err != nil {
			return err
		}
		at := 0
		for _, n := range l.counts {
			r.counts = append(r.counts, int32(at))
			at += n
		}
	}
	return nil
}
