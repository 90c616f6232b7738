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
		return vectors(8, sumFloat32AVX2, sum[float32])
	case Float64:
		return vectors(4, sumFloat64AVX2, sum[float64])
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
		return vectors(16, sumFloat32AVX512, sum[float32])
	case Float64:
		return vectors(8, sumFloat64AVX512, sum[float64])
	case BFloat16:
		return vectors(16, sumBF16AVX512, rounded(plus, BF16.Float32, ToBF16))
	case Float16:
		return vectors(16, sumFP16AVX512, rounded(plus, FP16.Float32, ToFP16))
	}
	return nil
}

// vectors makes a Func that gives whole vectors of n elements to the assembly, which knows half floats as
// uint16, and the rest to the plain loop.
func vectors[T, W number](n int, whole func(dst, a, b *W, n int), rest func(dst, a, b []T)) Func {
	return func(dst, a, b []byte) {
		x, y, z := views[T](dst, a, b)
		if even := len(x) &^ (n - 1); even > 0 {
			whole(start[W](x), start[W](y), start[W](z), even)
			x, y, z = x[even:], y[even:], z[even:]
		}
		rest(x, y, z)
	}
}

func start[W, T number](v []T) *W { return (*W)(unsafe.Pointer(unsafe.SliceData(v))) }
