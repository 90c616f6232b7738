package mpi

import "math/bits"

// Memory of messages that no receive has asked for yet.

// bufferPool keeps the memory of unexpected messages, by powers of two.
type bufferPool struct {
	free     [40][][]byte
	arrivals *arrival
	spare    int // of arrivals
}

const (
	keepBuffers  = 64 // of each size
	keepArrivals = 4096
)

func (b *bufferPool) buffer(n int) []byte {
	if n == 0 {
		return nil
	}
	class := bits.Len(uint(n - 1))
	if f := b.free[class]; len(f) > 0 {
		buf := f[len(f)-1]
		b.free[class] = f[:len(f)-1]
		return buf[:n]
	}
	return make([]byte, n, 1<<class)
}

func (b *bufferPool) giveBuffer(buf []byte) {
	if cap(buf) == 0 {
		return
	}
	class := bits.Len(uint(cap(buf) - 1))
	if len(b.free[class]) < keepBuffers {
		b.free[class] = append(b.free[class], buf)
	}
}

func (b *bufferPool) arrival() *arrival {
	a := b.arrivals
	if a == nil {
		return new(arrival)
	}
	b.arrivals = a.seqNext
	b.spare--
	a.seqNext = nil
	return a
}

func (b *bufferPool) giveArrival(a *arrival) {
	if b.spare == keepArrivals {
		return
	}
	*a = arrival{seqNext: b.arrivals}
	b.arrivals = a
	b.spare++
}
