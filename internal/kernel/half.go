package kernel

import "math"

// BF16 is a bfloat16: the upper half of a float32.
type BF16 uint16

// ToBF16 rounds to nearest, ties to even. A NaN stays one and becomes quiet.
func ToBF16(f float32) BF16 {
	x := math.Float32bits(f)
	if f != f {
		return BF16(x>>16 | 0x40)
	}
	return BF16((x + 0x7fff + x>>16&1) >> 16)
}

// Float32 is exact.
func (h BF16) Float32() float32 { return math.Float32frombits(uint32(h) << 16) }

// FP16 is an IEEE 754 binary16.
type FP16 uint16

// Float32 is exact. A NaN becomes quiet, as processors do it.
func (h FP16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	exponent := uint32(h >> 10 & 0x1f)
	fraction := uint32(h & 0x3ff)
	switch {
	case exponent == 0x1f && fraction != 0:
		return math.Float32frombits(sign | 0x7fc00000 | fraction<<13)
	case exponent == 0x1f:
		return math.Float32frombits(sign | 0x7f800000)
	case exponent == 0:
		// Zero or subnormal: fraction · 2⁻²⁴.
		f := float32(fraction) * 0x1p-24
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// ToFP16 rounds to nearest, ties to even; too large becomes infinite.
func ToFP16(f float32) FP16 {
	x := math.Float32bits(f)
	sign := FP16(x >> 16 & 0x8000)
	x &= 0x7fffffff
	switch {
	case x > 0x7f800000:
		return sign | 0x7e00 | FP16(x>>13&0x3ff)
	case x >= 0x47800000: // 2¹⁶ and up
		return sign | 0x7c00
	case x < 0x38800000: // below 2⁻¹⁴: subnormal
		// Adding 0.5 leaves the result, rounded by the addition, in the low bits.
		return sign | FP16(math.Float32bits(math.Float32frombits(x)+0.5)-math.Float32bits(0.5))
	}
	return sign | FP16((x+0xfff+x>>13&1-112<<23)>>13)
}
