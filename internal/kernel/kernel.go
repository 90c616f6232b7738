// Package kernel reduces one vector into another: the arithmetic of reduce,
// allreduce, scans and accumulating puts. Every operation has a form in plain Go; sums of
// floats also have AVX2 and AVX-512 forms, chosen when they are asked for by what
// the processor has.
package kernel

import (
	"fmt"
	"unsafe"
)

// Op is an operation on two elements. All of them are associative and
// commutative, up to rounding.
type Op uint8

const (
	Sum Op = iota
	Prod
	Min
	Max
	And
	Or
	Xor
	ops
)

var opNames = [ops]string{"sum", "prod", "min", "max", "bitand", "bitor", "bitxor"}

func (o Op) String() string {
	if o >= ops {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

// Type is an element type.
type Type uint8

const (
	Int8 Type = iota
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float32
	Float64
	Complex64
	Complex128
	BFloat16
	Float16
	types
)

var typeNames = [types]string{"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
	"float32", "float64", "complex64", "complex128", "bf16", "fp16"}

func (t Type) String() string {
	if t >= types {
		return fmt.Sprintf("type(%d)", uint8(t))
	}
	return typeNames[t]
}

// Func stores a op b in dst, element by element. The three are the memory of
// equally many elements; dst may be the same memory as a or b, but must not overlap them
// otherwise. Lengths that differ are cut to the shortest.
type Func func(dst, a, b []byte)

// For returns the kernel for an operation on a type; false where there is
// none (bitwise on floats, order on complex numbers).
func For(o Op, t Type) (Func, bool) {
	if o == Sum {
		if f := vectorSum(t); f != nil {
			return f, true
		}
	}
	return Plain(o, t)
}

// Plain is For without vector instructions.
func Plain(o Op, t Type) (Func, bool) {
	var f Func
	switch t {
	case Int8:
		f = integer[int8](o)
	case Int16:
		f = integer[int16](o)
	case Int32:
		f = integer[int32](o)
	case Int64:
		f = integer[int64](o)
	case Uint8:
		f = integer[uint8](o)
	case Uint16:
		f = integer[uint16](o)
	case Uint32:
		f = integer[uint32](o)
	case Uint64:
		f = integer[uint64](o)
	case Float32:
		f = float[float32](o)
	case Float64:
		f = float[float64](o)
	case Complex64:
		f = complexes[complex64](o)
	case Complex128:
		f = complexes[complex128](o)
	case BFloat16:
		f = short[BF16](o, BF16.Float32, ToBF16)
	case Float16:
		f = short[FP16](o, FP16.Float32, ToFP16)
	}
	return f, f != nil
}

type number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// typed makes a Func of a loop over elements.
func typed[T number](loop func(dst, a, b []T)) Func {
	return func(dst, a, b []byte) { loop(views[T](dst, a, b)) }
}

// views are operands as equally many elements.
func views[T number](dst, a, b []byte) (x, y, z []T) {
	var zero T
	n := min(len(dst), len(a), len(b)) / int(unsafe.Sizeof(zero))
	return view[T](dst, n), view[T](a, n), view[T](b, n)
}

func view[T number](b []byte, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
