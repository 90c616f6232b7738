package collective

import (
	"cmp"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// operand is the operand of a rank: small numbers, so that sums and products of any order are exact in
// every type. Complex ones are those times a power of i, and those of half precision powers of two.
func operand[T mpi.Elem](seed, rank, n int) []T {
	v := make([]T, n)
	switch s := any(v).(type) {
	case []int8:
		draw(s, seed, rank)
	case []int16:
		draw(s, seed, rank)
	case []int32:
		draw(s, seed, rank)
	case []int64:
		draw(s, seed, rank)
	case []int:
		draw(s, seed, rank)
	case []uint8:
		draw(s, seed, rank)
	case []uint16:
		draw(s, seed, rank)
	case []uint32:
		draw(s, seed, rank)
	case []uint64:
		draw(s, seed, rank)
	case []float32:
		draw(s, seed, rank)
	case []float64:
		draw(s, seed, rank)
	case []complex64:
		for i := range s {
			s[i] = complex64(turned(seed, rank, i))
		}
	case []complex128:
		for i := range s {
			s[i] = turned(seed, rank, i)
		}
	case []BF16:
		for i := range s {
			s[i] = ToBF16(powerOf2(seed, rank, i))
		}
	case []FP16:
		for i := range s {
			s[i] = ToFP16(powerOf2(seed, rank, i))
		}
	default:
		panic(fmt.Sprintf("no operands of %T", v))
	}
	return v
}

func drawn(seed, rank, i int) uint64 {
	return (uint64(seed)<<40 ^ uint64(rank)<<24 ^ uint64(i)) * 0x9e3779b97f4a7c15
}

func small(h uint64) int { return int(1 + h>>33%3) }

func draw[T interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}](v []T, seed, rank int) {
	for i := range v {
		v[i] = T(small(drawn(seed, rank, i)))
	}
}

func turned(seed, rank, i int) complex128 {
	h := drawn(seed, rank, i)
	return complex(float64(small(h)), 0) * [...]complex128{1, 1i, -1, -1i}[h>>50%4]
}

func powerOf2(seed, rank, i int) float32 {
	return [...]float32{0.5, 1, 2}[small(drawn(seed, rank, i))-1]
}

func sumOf[T mpi.Elem](a, b T) T    { return a + b }
func prodOf[T mpi.Elem](a, b T) T   { return a * b }
func minOf[T cmp.Ordered](a, b T) T { return min(a, b) }
func maxOf[T cmp.Ordered](a, b T) T { return max(a, b) }

// half has the operators on a type of half precision: in float32, rounded.
func half[T interface {
	mpi.Elem
	Float32() float32
}](round func(float32) T) []reduceCase {
	var zero T
	name := fmt.Sprintf("%T", zero)
	in32 := func(f func(a, b float32) float32) func(a, b T) T {
		return func(a, b T) T { return round(f(a.Float32(), b.Float32())) }
	}
	return []reduceCase{
		caseOf("sum of "+name, Sum, in32(sumOf[float32])), caseOf("prod of "+name, Prod, in32(prodOf[float32])),
		caseOf("min of "+name, Min, in32(minOf[float32])), caseOf("max of "+name, Max, in32(maxOf[float32])),
	}
}

// linear has the operators on a complex type.
func linear[T interface{ complex64 | complex128 }]() []reduceCase {
	var zero T
	name := fmt.Sprintf("%T", zero)
	return []reduceCase{caseOf("sum of "+name, Sum, sumOf[T]), caseOf("prod of "+name, Prod, prodOf[T])}
}

func arithmetic[T interface {
	mpi.Elem
	cmp.Ordered
}]() []reduceCase {
	var zero T
	name := fmt.Sprintf("%T", zero)
	return []reduceCase{
		caseOf("sum of "+name, Sum, sumOf[T]), caseOf("prod of "+name, Prod, prodOf[T]),
		caseOf("min of "+name, Min, minOf[T]), caseOf("max of "+name, Max, maxOf[T]),
	}
}

func bitwise[T interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}]() []reduceCase {
	var zero T
	name := fmt.Sprintf("%T", zero)
	return append(arithmetic[T](),
		caseOf("and of "+name, BitAnd, func(a, b T) T { return a & b }),
		caseOf("or of "+name, BitOr, func(a, b T) T { return a | b }),
		caseOf("xor of "+name, BitXor, func(a, b T) T { return a ^ b }))
}

// allCases is every operator on every type that has it.
func allCases() []reduceCase {
	cases := []reduceCase{caseOf("concat", concat, concatOne)}
	for _, cs := range [][]reduceCase{
		bitwise[int8](), bitwise[int16](), bitwise[int32](), bitwise[int64](),
		bitwise[uint8](), bitwise[uint16](), bitwise[uint32](), bitwise[uint64](),
		arithmetic[float32](), arithmetic[float64](), linear[complex64](), linear[complex128](), half(ToBF16), half(ToFP16),
	} {
		cases = append(cases, cs...)
	}
	return cases
}
