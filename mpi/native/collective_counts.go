package native

import (
	"fmt"
	"math"
	"unsafe"
)

// Collectives of a block per rank, with a count for each.

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
			if n < 0 || n > math.MaxInt32-total {
				return r.fail(0, ErrUnsupported, fmt.Sprintf("counts %v: each must be at least 0, all together at most %d", l.counts, math.MaxInt32))
			}
			total += n
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
