package kernel

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate sh -c "cd gen && go run . -out ../sum_amd64.s -stubs ../sum_amd64.go -pkg kernel"

// vectorSum is the widest form of Sum that this processor runs, nil if none.
func vectorSum(t Type) Func {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL:
		return avx512Sum(t)
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return avx2Sum(t)
	}
	return nil
}

// Processors with AVX2 and FMA convert half floats too (F16C is older than both).

func avx2Sum(t Type) Func {
	switch t {
	case Float32:
		return sums(8, sumFloat32AVX2)
	case Float64:
		return sums(4, sumFloat64AVX2)
	case BFloat16:
		return vectors(8, sumBF16AVX2, rounded(plus, BF16.Float32, ToBF16))
	case Float16:
		return vectors(8, sumFP16AVX2, rounded(plus, FP16.Float32, ToFP16))
	}
	return nil
}

func avx512Sum(t Type) Func {
	switch t {
	case Float32:
		return sums(16, sumFloat32AVX512)
	case Float64:
		return sums(8, sumFloat64AVX512)
	case BFloat16:
		return vectors(16, sumBF16AVX512, rounded(plus, BF16.Float32, ToBF16))
	case Float16:
		return vectors(16, sumFP16AVX512, rounded(plus, FP16.Float32, ToFP16))
	}
	return nil
}

// sums makes a Func that gives whole vectors of n floats to the assembly, and adds the rest itself, so that nothing is called
// and no slice made for the few floats of the shortest collectives.
func sums[T floats](n int, whole func(dst, a, b *T, n int)) Func {
	return func(dst, a, b []byte) {
		x, y, z := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(a)), unsafe.Pointer(unsafe.SliceData(b))
		size := unsafe.Sizeof(*new(T))
		all := uintptr(min(len(dst), len(a), len(b))) &^ (size - 1)
		even := all &^ (uintptr(n)*size - 1)
		if even > 0 {
			whole((*T)(x), (*T)(y), (*T)(z), int(even/size))
		}
		for at := even; at < all; at += size {
			*(*T)(unsafe.Add(x, at)) = *(*T)(unsafe.Add(y, at)) + *(*T)(unsafe.Add(z, at))
		}
	}
}

// vectors makes a Func that gives whole vectors of n half floats to the assembly, which knows them as uint16, and the rest to
// the plain loop.
func vectors[T BF16 | FP16](n int, whole func(dst, a, b *uint16, n int), rest func(dst, a, b []T)) Func {
	start := func(v []T) *uint16 { return (*uint16)(unsafe.Pointer(unsafe.SliceData(v))) }
	return func(dst, a, b []byte) {
		x, y, z := views[T](dst, a, b)
		if even := len(x) &^ (n - 1); even > 0 {
			whole(start(x), start(y), start(z), even)
			x, y, z = x[even:], y[even:], z[even:]
		}
		rest(x, y, z)
	}
}
