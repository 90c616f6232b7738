package kernel

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
)

func sizeOf(t Type) int {
	return [types]int{1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 8, 16, 2, 2}[t]
}

func TestForCoversOpsAndTypes(t *testing.T) {
	for ty := range types {
		for op := range ops {
			_, ok := For(op, ty)
			bitwise := op >= And
			want := true
			switch {
			case ty == Complex64 || ty == Complex128:
				want = op <= Prod
			case ty >= Float32:
				want = !bitwise
			}
			if ok != want {
				t.Errorf("%v of %v: there %v, want %v", op, ty, ok, want)
			}
		}
	}
}

func TestPlainArithmetic(t *testing.T) {
	a, b := []byte{0xf0, 3, 7, 255}, []byte{0x3c, 5, 7, 2}
	for op, want := range map[Op][]byte{
		Sum: {0x2c, 8, 14, 1}, Prod: {0x40, 15, 49, 254}, Min: {0x3c, 3, 7, 2}, Max: {0xf0, 5, 7, 255},
		And: {0x30, 1, 7, 2}, Or: {0xfc, 7, 7, 255}, Xor: {0xcc, 6, 0, 253},
	} {
		f, _ := For(op, Uint8)
		dst := make([]byte, 4)
		if f(dst, a, b); !bytes.Equal(dst, want) {
			t.Errorf("%v: %v, want %v", op, dst, want)
		}
	}
	f, _ := For(Min, Int8)
	dst := make([]byte, 1)
	if f(dst, []byte{0xff}, []byte{1}); dst[0] != 0xff {
		t.Errorf("min of -1 and 1 as int8 is %#x", dst[0])
	}
}

// fill writes random bits that are mostly ordinary numbers, with a share of
// infinities, subnormals and NaNs.
func fill(rng *rand.Rand, b []byte, t Type) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	if t != Float32 && t != Float64 {
		return
	}
	for i := 0; i+sizeOf(t) <= len(b); i += sizeOf(t) {
		if rng.IntN(8) > 0 {
			// An exponent near 1 makes sums that round.
			b[i+sizeOf(t)-1] = 0x3f + byte(rng.IntN(2))
		}
	}
}

// The vector forms must give the plain form's bits on every length up to 257 and
// every misalignment, also in place, and touch nothing around dst.
func TestVectorsEqualPlain(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	forms := vectorForms()
	if len(forms) == 0 {
		need.Part(t, "avx2", "this processor has no vector form of sum")
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			plain, _ := Plain(Sum, form.t)
			size := sizeOf(form.t)
			for n := range 258 {
				for shift := range 64 / size {
					offset := shift * size
					a, b := make([]byte, offset+n*size), make([]byte, (n+1)*size)
					fill(rng, a, form.t)
					fill(rng, b, form.t)
					a, b = a[offset:], b[size:]
					dst := bytes.Repeat([]byte{0xa5}, n*size+offset+64)
					want := make([]byte, n*size)
					plain(want, a, b)
					form.f(dst[offset:offset+n*size], a, b)
					if err := same(form.t, dst[offset:offset+n*size], want); err != nil {
						t.Fatalf("%d elements, offset %d: %v", n, offset, err)
					}
					if !bytes.Equal(dst[:offset], bytes.Repeat([]byte{0xa5}, offset)) ||
						!bytes.Equal(dst[offset+n*size:], bytes.Repeat([]byte{0xa5}, 64)) {
						t.Fatalf("%d elements, offset %d: wrote outside", n, offset)
					}
					form.f(a, a, b)
					if err := same(form.t, a, want); err != nil {
						t.Fatalf("%d elements, offset %d, in place: %v", n, offset, err)
					}
				}
			}
		})
	}
}

// same compares bit for bit, except that any NaN equals any other.
func same(t Type, got, want []byte) error {
	size := sizeOf(t)
	for i := 0; i < len(want); i += size {
		g, w := got[i:i+size], want[i:i+size]
		if !bytes.Equal(g, w) && !(isNaN(t, g) && isNaN(t, w)) {
			return fmt.Errorf("element %d is % x, want % x", i/size, g, w)
		}
	}
	return nil
}

func isNaN(t Type, b []byte) bool {
	switch t {
	case Float32:
		f := view[float32](b, 1)[0]
		return f != f
	case Float64:
		f := view[float64](b, 1)[0]
		return f != f
	case BFloat16:
		f := view[BF16](b, 1)[0].Float32()
		return f != f
	case Float16:
		f := view[FP16](b, 1)[0].Float32()
		return f != f
	}
	return false
}

func TestLengthsAreCutToTheShortest(t *testing.T) {
	for ty := range types {
		f, _ := For(Sum, ty)
		size := sizeOf(ty)
		dst := bytes.Repeat([]byte{1}, 100*size)
		f(dst, make([]byte, 40*size), make([]byte, 33*size))
		if !bytes.Equal(dst[33*size:], bytes.Repeat([]byte{1}, 67*size)) {
			t.Errorf("%v: wrote past the shortest operand", ty)
		}
		if !bytes.Equal(dst[:33*size], make([]byte, 33*size)) {
			t.Errorf("%v: did not write all", ty)
		}
	}
}

func TestHalfFloatsConvertBothWays(t *testing.T) {
	for i := range 1 << 16 {
		if h := FP16(i); h.Float32() == h.Float32() && ToFP16(h.Float32()) != h {
			t.Fatalf("fp16 %#04x becomes %#04x", i, ToFP16(h.Float32()))
		}
		if h := BF16(i); h.Float32() == h.Float32() && ToBF16(h.Float32()) != h {
			t.Fatalf("bf16 %#04x becomes %#04x", i, ToBF16(h.Float32()))
		}
	}
	for f, want := range map[float32]FP16{
		1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65519: 0x7bff, 65520: 0x7c00, 1e9: 0x7c00,
		0x1p-24: 1, 0x1p-25: 0, 0x1.8p-25: 1, 0x1p-14: 0x0400, 1 + 0x1p-11: 0x3c00, 1 + 0x3p-11: 0x3c02,
	} {
		if got := ToFP16(f); got != want {
			t.Errorf("%g as fp16 is %#04x, want %#04x", f, got, want)
		}
	}
	for f, want := range map[float32]BF16{1: 0x3f80, 1 + 0x1p-8: 0x3f80, 1 + 0x3p-8: 0x3f82, math.MaxFloat32: 0x7f80} {
		if got := ToBF16(f); got != want {
			t.Errorf("%g as bf16 is %#04x, want %#04x", f, got, want)
		}
	}
	nan := float32(math.NaN())
	if f := ToFP16(nan).Float32(); f == f {
		t.Error("a NaN is no NaN as fp16")
	}
	if f := ToBF16(nan).Float32(); f == f {
		t.Error("a NaN is no NaN as bf16")
	}
}

// Min and Max of a number and a NaN are NaN, whichever comes first.
func TestLeastAndGreatestOfNaN(t *testing.T) {
	bits := map[Type][2][]byte{ // 1 and NaN
		Float32:  {{0, 0, 0x80, 0x3f}, {0, 0, 0xc0, 0x7f}},
		Float64:  {{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}, {0, 0, 0, 0, 0, 0, 0xf8, 0x7f}},
		BFloat16: {{0x80, 0x3f}, {0xc0, 0x7f}},
		Float16:  {{0, 0x3c}, {0, 0x7e}},
	}
	for _, op := range []Op{Min, Max} {
		for ty, x := range bits {
			f, _ := For(op, ty)
			for _, k := range [][2]int{{0, 1}, {1, 0}, {1, 1}} {
				dst := make([]byte, len(x[0]))
				f(dst, x[k[0]], x[k[1]])
				if dst[len(dst)-1]&0x7f != x[1][len(dst)-1] || dst[len(dst)-2]&0x40 == 0 && ty != Float16 {
					t.Errorf("%v of %v: %x and %x give %x", op, ty, x[k[0]], x[k[1]], dst)
				}
			}
			dst := make([]byte, len(x[0]))
			if f(dst, x[0], x[0]); !bytes.Equal(dst, x[0]) {
				t.Errorf("%v of %v: 1 and 1 give %x", op, ty, dst)
			}
		}
	}
}

func BenchmarkSum(b *testing.B) {
	for _, t := range []Type{Float32, Float64, BFloat16, Float16} {
		for _, bytes := range []int{16 << 10, 512 << 10} {
			for name, f := range map[string]func() (Func, bool){
				"best":  func() (Func, bool) { return For(Sum, t) },
				"plain": func() (Func, bool) { return Plain(Sum, t) },
			} {
				b.Run(fmt.Sprintf("%v/%dK/%s", t, bytes>>10, name), func(b *testing.B) {
					f, _ := f()
					x, y := make([]byte, bytes), make([]byte, bytes)
					b.SetBytes(int64(3 * bytes))
					for b.Loop() {
						f(x, x, y)
					}
				})
			}
		}
	}
}
