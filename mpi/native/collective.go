package native

import (
	"fmt"
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

// collect readies r for a collective over buffers recv and send, and returns the call that is to start it.
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

// elements is how many elements of type t a vector or block has, which must be whole ones.
func (c *Comm) elements(r *Request, t Type, lengthBytes int) (uintptr, error) {
	if t >= types {
		return 0, r.fail(0, ErrUnsupported, t.String())
	}
	if lengthBytes%t.Bytes() != 0 {
		return 0, r.fail(0, ErrLength, fmt.Sprintf("%d B are no whole number of %s elements, which have %d B each", lengthBytes, t, t.Bytes()))
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

// put sets the arguments (buffer, count, type) from index i on.
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
