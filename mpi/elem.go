package mpi

import "unsafe"

// Elem is what a message holds: fixed-size numbers without pointers. Counts
// and lengths are in elements everywhere; a quantity in bytes says so in its name.
type Elem interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int |
		~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// Wildcards and limits. The values are Fisterra's own; devices translate.
const (
	AnySource = -1 // receive from any rank of the communicator
	ProcNull  = -2 // sends to and receives from it complete at once, empty
	AnyTag    = -1 // receive any tag
	Undefined = -1 // color for Split: no communicator for this rank

	// MaxTag is the largest tag; tags run from 0.
	MaxTag = 1<<30 - 1
)

// Bytes returns buf's memory as bytes. The view aliases buf.
func Bytes[T Elem](buf []T) []byte {
	if len(buf) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(buf))), len(buf)*SizeOf[T]())
}

// View returns the memory of b as elements: the reverse of Bytes. b must be
// aligned for T; a tail shorter than one element is left out.
func View[T Elem](b []byte) []T {
	if len(b) < SizeOf[T]() {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/SizeOf[T]())
}

// SizeOf is the size of one element in bytes.
func SizeOf[T Elem]() int {
	var zero T
	return int(unsafe.Sizeof(zero))
}

// Status describes a received message, or one found by a probe.
type Status struct {
	Source int // rank in the communicator of the receive
	Tag    int
	Bytes  int // length of the message; after ErrTruncated, of the whole message
}

// Count is the number of whole elements in the message s describes.
func Count[T Elem](s Status) int { return s.Bytes / SizeOf[T]() }
