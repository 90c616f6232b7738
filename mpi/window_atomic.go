package mpi

import (
	"fmt"
	"reflect"
	"sync/atomic"
	"unsafe"
)

// Accumulation is what Accumulate and FetchAndOp do with the element at the target
// (a) and the one given (b).
type Accumulation uint8

const (
	AccReplace Accumulation = iota // b
	AccSum                         // a + b
	AccProd                        // a · b
	AccMin                         // the smaller; not for complex numbers
	AccMax                         // the larger; not for complex numbers
	AccAnd                         // a & b; integers only
	AccOr                          // a | b; integers only
	AccXor                         // a ^ b; integers only
	AccNone                        // a: FetchAndOp then reads atomically
	accumulations
)

var accumulationNames = [...]string{"replace", "sum", "prod", "min", "max", "and", "or", "xor", "none"}

func (a Accumulation) String() string {
	if a < accumulations {
		return accumulationNames[a]
	}
	return fmt.Sprintf("accumulation %d", uint8(a))
}

// combiners has the functions of the accumulations that T has; nil for others.
func combiners[T Elem]() (f [accumulations]func(a, b T) T) {
	f[AccReplace] = func(_, b T) T { return b }
	f[AccNone] = func(a, _ T) T { return a }
	f[AccSum] = func(a, b T) T { return a + b }
	f[AccProd] = func(a, b T) T { return a * b }
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Int8:
		integers[T, int8](&f)
	case reflect.Int16:
		integers[T, int16](&f)
	case reflect.Int32:
		integers[T, int32](&f)
	case reflect.Int64:
		integers[T, int64](&f)
	case reflect.Int:
		integers[T, int](&f)
	case reflect.Uint8:
		integers[T, uint8](&f)
	case reflect.Uint16:
		integers[T, uint16](&f)
	case reflect.Uint32:
		integers[T, uint32](&f)
	case reflect.Uint64:
		integers[T, uint64](&f)
	case reflect.Uint:
		integers[T, uint](&f)
	case reflect.Float32:
		ordered[T, float32](&f)
	case reflect.Float64:
		ordered[T, float64](&f)
	}
	return f
}

type integer interface {
	int8 | int16 | int32 | int64 | int | uint8 | uint16 | uint32 | uint64 | uint
}

// ordered adds the accumulations of T, whose kind is U's.
func ordered[T Elem, U integer | float32 | float64](f *[accumulations]func(a, b T) T) {
	f[AccMin] = as[T](func(a, b U) U { return min(a, b) })
	f[AccMax] = as[T](func(a, b U) U { return max(a, b) })
}

func integers[T Elem, U integer](f *[accumulations]func(a, b T) T) {
	ordered[T, U](f)
	f[AccAnd] = as[T](func(a, b U) U { return a & b })
	f[AccOr] = as[T](func(a, b U) U { return a | b })
	f[AccXor] = as[T](func(a, b U) U { return a ^ b })
}

// as makes a function of T from one of its kind.
func as[T Elem, U integer | float32 | float64](f func(a, b U) U) func(a, b T) T {
	return func(a, b T) T {
		u := f(*(*U)(unsafe.Pointer(&a)), *(*U)(unsafe.Pointer(&b)))
		return *(*T)(unsafe.Pointer(&u))
	}
}

// lockFree reports whether the processor changes elements of T atomically;
// others are changed by their owner only, one at a time. So are complex64: they have 8 bytes, but lie at
// multiples of 4, where atomic instructions fail or hold up all cores.
func lockFree[T Elem]() bool {
	n := SizeOf[T]()
	return (n == 4 || n == 8) && uintptr(n) == unsafe.Alignof(*new(T))
}

// change replaces *p by f of it, atomically if T is lockFree, and returns what it was.
func change[T Elem](p *T, f func(old T) T) T {
	switch {
	case !lockFree[T]():
		old := *p
		*p = f(old)
		return old
	case SizeOf[T]() == 4:
		for word := (*uint32)(unsafe.Pointer(p)); ; {
			was := atomic.LoadUint32(word)
			old := *(*T)(unsafe.Pointer(&was))
			next := f(old)
			if atomic.CompareAndSwapUint32(word, was, *(*uint32)(unsafe.Pointer(&next))) {
				return old
			}
		}
	default:
		for word := (*uint64)(unsafe.Pointer(p)); ; {
			was := atomic.LoadUint64(word)
			old := *(*T)(unsafe.Pointer(&was))
			next := f(old)
			if atomic.CompareAndSwapUint64(word, was, *(*uint64)(unsafe.Pointer(&next))) {
				return old
			}
		}
	}
}

// accumulate changes dst element by element.
func accumulate[T Elem](dst, src []T, f func(a, b T) T) {
	for i := range src {
		b := src[i]
		change(&dst[i], func(a T) T { return f(a, b) })
	}
}
