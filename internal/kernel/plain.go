package kernel

type integers interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

type floats interface{ ~float32 | ~float64 }

// The loops say a[:len(dst)] so that the compiler drops the bounds checks.

func sum[T number](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func prod[T number](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] * b[i]
	}
}

func least[T integers | floats](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = min(a[i], b[i])
	}
}

func greatest[T integers | floats](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = max(a[i], b[i])
	}
}

func integer[T integers](o Op) Func {
	switch o {
	case Sum:
		return typed(sum[T])
	case Prod:
		return typed(prod[T])
	case Min:
		return typed(least[T])
	case Max:
		return typed(greatest[T])
	case And:
		return typed(func(dst, a, b []T) {
			a, b = a[:len(dst)], b[:len(dst)]
			for i := range dst {
				dst[i] = a[i] & b[i]
			}
		})
	case Or:
		return typed(func(dst, a, b []T) {
			a, b = a[:len(dst)], b[:len(dst)]
			for i := range dst {
				dst[i] = a[i] | b[i]
			}
		})
	case Xor:
		return typed(func(dst, a, b []T) {
			a, b = a[:len(dst)], b[:len(dst)]
			for i := range dst {
				dst[i] = a[i] ^ b[i]
			}
		})
	}
	return nil
}

// float: the least and the greatest of numbers and a NaN are NaN.
func float[T floats](o Op) Func {
	switch o {
	case Sum:
		return typed(sum[T])
	case Prod:
		return typed(prod[T])
	case Min:
		return typed(least[T])
	case Max:
		return typed(greatest[T])
	}
	return nil
}

func complexes[T ~complex64 | ~complex128](o Op) Func {
	switch o {
	case Sum:
		return typed(sum[T])
	case Prod:
		return typed(prod[T])
	}
	return nil
}

// short computes in float32 and rounds each result.
func short[T BF16 | FP16](o Op, wide func(T) float32, narrow func(float32) T) Func {
	switch o {
	case Sum:
		return typed(rounded(plus, wide, narrow))
	case Prod:
		return typed(rounded(func(x, y float32) float32 { return x * y }, wide, narrow))
	case Min:
		return typed(rounded(func(x, y float32) float32 { return min(x, y) }, wide, narrow))
	case Max:
		return typed(rounded(func(x, y float32) float32 { return max(x, y) }, wide, narrow))
	}
	return nil
}

func plus(x, y float32) float32 { return x + y }

// rounded makes a loop over half floats of a function of float32.
func rounded[T BF16 | FP16](f func(x, y float32) float32, wide func(T) float32, narrow func(float32) T) func(dst, a, b []T) {
	return func(dst, a, b []T) {
		a, b = a[:len(dst)], b[:len(dst)]
		for i := range dst {
			dst[i] = narrow(f(wide(a[i]), wide(b[i])))
		}
	}
}
