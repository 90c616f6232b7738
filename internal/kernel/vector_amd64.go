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
		return vectors(8, sumFloat32AVX2, typed(sum[float32]))
	case Float64:
		return vectors(4, sumFloat64AVX2, typed(sum[float64]))
	case BFloat16:
		return vectors(8, sumBF16AVX2, shortSum(t))
	case Float16:
		return vectors(8, sumFP16AVX2, shortSum(t))
	}
	return nil
}

func avx512Sum(t Type) Func {
	switch t {
	case Float32:
		return vectors(16, sumFloat32AVX512, typed(sum[float32]))
	case Float64:
		return vectors(8, sumFloat64AVX512, typed(sum[float64]))
	case BFloat16:
		return vectors(16, sumBF16AVX512, shortSum(t))
	case Float16:
		return vectors(16, sumFP16AVX512, shortSum(t))
	}
	return nil
}

func shortSum(t Type) Func {
	f, _ := Plain(Sum, t)
	return f
}

// vectors gives whole vectors of n elements to the assembly and the rest to the plain
// loop. All lengths are cut to the shortest before any pointer is passed on.
func vectors[T number](n int, whole func(dst, a, b *T, n int), rest Func) Func {
	var zero T
	size := int(unsafe.Sizeof(zero))
	return func(dst, a, b []byte) {
		count := min(len(dst), len(a), len(b)) / size
		even := count &^ (n - 1)
		if even > 0 {
			whole((*T)(unsafe.Pointer(unsafe.SliceData(dst))), (*T)(unsafe.Pointer(unsafe.SliceData(a))),
				(*T)(unsafe.Pointer(unsafe.SliceData(b))), even)
		}
		if even < count {
			lo, hi := even*size, count*size
			rest(dst[lo:hi], a[lo:hi], b[lo:hi])
		}
	}
}
