package native

import (
	"math"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Messages of any length, as calls of the library.

// maxCount is the largest count of the classic calls.
const maxCount = math.MaxInt32

// transfer readies the chain to start a byte message: the classic call, its large-count
// form, or one element of a datatype made for the purpose. The message on the wire is
// the same in all three. The world's lock is held.
func (r *Request) transfer(classic, large uintptr) error {
	w := r.comm.world
	b := &w.chain.Start
	b.Fn = classic
	b.A[0] = uintptr(r.buf)
	b.A[1] = uintptr(r.bytes)
	b.A[2] = uintptr(w.abi.types[Byte])
	if r.bytes <= w.maxCount {
		return nil
	}
	if large != 0 {
		b.Fn = large
		return nil
	}
	if err := r.makeType(); err != nil {
		return err
	}
	b.A[1] = 1
	b.A[2] = uintptr(w.load(&r.large))
	return nil
}

// makeType makes r.large, a datatype of r.bytes contiguous bytes in blocks that an int
// can count.
func (r *Request) makeType() error {
	w := r.comm.world
	blockBytes := w.maxCount/2 + 1
	n := (r.bytes + blockBytes - 1) / blockBytes
	lengths, offsets := make([]int32, n), make([]int, n)
	for i := range n {
		offsets[i] = i * blockBytes
		lengths[i] = int32(min(blockBytes, r.bytes-offsets[i]))
	}
	rc := int(int32(clib.Call(w.fn.typeHindexed, uintptr(n), uintptr(unsafe.Pointer(&lengths[0])),
		uintptr(unsafe.Pointer(&offsets[0])), uintptr(w.abi.types[Byte]), uintptr(unsafe.Pointer(&r.large)))))
	if rc == 0 {
		rc = int(int32(clib.Call(w.fn.typeCommit, uintptr(unsafe.Pointer(&r.large)))))
	}
	if rc != 0 {
		return r.failure(rc)
	}
	return nil
}

// freeType gives r.large back, if there is one.
func (r *Request) freeType() {
	if r.large != 0 {
		clib.Call(r.comm.world.fn.typeFree, uintptr(unsafe.Pointer(&r.large)))
		r.large = 0
	}
}
