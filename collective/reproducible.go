package collective

import (
	"context"
	"fmt"
	"math"
	"math/bits"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// A reproducible sum is taken in integers, whose sum does not depend on the
// order. First the ranks agree, per element, on a power of two that no operand
// reaches (an allreduce of 2 B); then every operand is cut to a fixed-point number with
// that power at the top, and those are added: 128 bits for float64, 64 for
// float32. 24 bits above leave room for 2²⁴ operands. What is cut off an operand depends
// on it and on the agreed power only.
//
// After Demmel, Nguyen, "Parallel reproducible summation", 2015 (pre-rounding to a common exponent).
const (
	sumBits    = 24                // operands per element: at most 2²⁴
	bits64     = 128 - 2 - sumBits // of one float64 operand
	bits32     = 64 - 2 - sumBits  // of one float32 operand
	bias       = 1200              // makes exponents positive; 0 is for zero
	exponent   = 1<<13 - 1         // mask of the biased exponent in a magnitude
	hasNaN     = 1 << 13           // flags of a magnitude
	hasPlus    = 1 << 14           // an infinity
	hasMinus   = 1 << 15
	maxSummand = 1 << sumBits
)

// quad is a 128-bit integer that travels as one element; only its bits count.
type quad = complex128

var (
	magnitudeOp = OpFunc("magnitude", combineMagnitudes).Commutative()
	quadSum     = OpFunc("sum of 128-bit integers", addQuads).Commutative()
)

func combineMagnitudes(dst, a, b []uint16) {
	for i := range dst {
		x, y := a[i], b[i]
		dst[i] = (x|y)&^exponent | max(x&exponent, y&exponent)
	}
}

func addQuads(dst, a, b []quad) {
	d, x, y := words(dst), words(a), words(b)
	for i := 0; i < len(d); i += 2 {
		lo, carry := bits.Add64(x[i], y[i], 0)
		hi, _ := bits.Add64(x[i+1], y[i+1], carry)
		d[i], d[i+1] = lo, hi
	}
}

func words(q []quad) []uint64 { return mpi.View[uint64](mpi.Bytes(q)) }

// ReproducibleAllreduce sums rows, any number of them on each rank, all as
// long as recv, over all ranks into recv on all ranks. recv may be one of the rows; no row overlaps it otherwise. The bits of
// the result depend on the rows alone, not on how they are spread over ranks, in which order, or by which plan. T is float32 or
// float64; each of P ranks has at most 2²⁴/P rows, else it is ErrArgument on all. It errs by at most 2⁻¹⁰¹ (float64) or 2⁻³⁷ (float32) of
// the largest magnitude per row, before it rounds once. It needs 18 B (10 B) per element, which the communicator keeps for
// the next sum.
func ReproducibleAllreduce[T mpi.Elem](ctx context.Context, c *mpi.Comm, rows [][]T, recv []T) error {
	return reproducible(ctx, c, plan.Allreduce, "a row", rows, recv, 0)
}

func reproducibleAllreduce[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T) error {
	return reproducible(ctx, c, plan.Allreduce, "send", [][]T{send}, recv, 0)
}

func reproducibleReduce[T mpi.Elem](ctx context.Context, c *mpi.Comm, send, recv []T, root int) error {
	if c.Rank() != root {
		recv = send[:len(send):len(send)] // for its length only
	}
	return reproducible(ctx, c, plan.Reduce, "send", [][]T{send}, recv, root)
}

// reproducible is an allreduce, or a reduce to root. `what` names a row to the caller.
func reproducible[T mpi.Elem](ctx context.Context, c *mpi.Comm, kind plan.Kind, what string, rows [][]T, recv []T, root int) error {
	var q call
	q.setVector(kind, typeOf[T](), len(recv))
	q.op = ReproducibleSum
	if kind == plan.Reduce {
		q.setRoot(c, root)
	}
	if q.typ.kind != kernel.Float32 && q.typ.kind != kernel.Float64 {
		q.fail("ReproducibleSum is of float32 or float64, not of %v", q.typ.kind)
	}
	for _, r := range rows {
		q.wantLen(what, len(r), len(recv))
		q.sameOrApart(what, mpi.Bytes(r), mpi.Bytes(recv))
	}
	s := stateOf(c)
	if q.err != nil {
		return s.reject(&q, q.err)
	}
	fixed := s.takeFixed(len(recv), q.typ.size)
	var err error
	if q.typ.kind == kernel.Float32 {
		err = reproducible32(ctx, c, &q, fixed, rows, mpi.View[float32](mpi.Bytes(recv)))
	} else {
		err = reproducible64(ctx, c, &q, fixed, rows, mpi.View[float64](mpi.Bytes(recv)))
	}
	if err == nil { // else messages may be in flight in it
		s.keepFixed(fixed)
	}
	return err
}

func reproducible64[T mpi.Elem](ctx context.Context, c *mpi.Comm, q *call, f *fixedPoint, rows [][]T, recv []float64) error {
	mags, sums := f.magnitudes[:len(recv)+1], f.quads[:len(recv)]
	measure[float64](mags, rows, mostRows(c))
	w := words(sums)
	err := scaleAndAdd(ctx, c, q, mags, sums, quadSum, func() {
		for _, row := range rows {
			for i, x := range mpi.View[float64](mpi.Bytes(row)) {
				if m := mags[i]; m&^exponent == 0 && x != 0 {
					hi, lo := fixed(x, int(m&exponent)-bias-bits64)
					var carry uint64
					w[2*i], carry = bits.Add64(w[2*i], lo, 0)
					w[2*i+1], _ = bits.Add64(w[2*i+1], hi, carry)
				}
			}
		}
	})
	if err != nil || q.kind == plan.Reduce && c.Rank() != q.root {
		return err
	}
	for i, m := range mags[:len(recv)] {
		if s, ok := special(m); ok {
			recv[i] = s
		} else {
			recv[i] = unfixed(w[2*i+1], w[2*i], int(m&exponent)-bias-bits64)
		}
	}
	return nil
}

func reproducible32[T mpi.Elem](ctx context.Context, c *mpi.Comm, q *call, f *fixedPoint, rows [][]T, recv []float32) error {
	mags, sums := f.magnitudes[:len(recv)+1], mpi.View[int64](mpi.Bytes(f.quads))[:len(recv)]
	measure[float32](mags, rows, mostRows(c))
	err := scaleAndAdd(ctx, c, q, mags, sums, Sum, func() {
		for _, row := range rows {
			for i, x := range mpi.View[float32](mpi.Bytes(row)) {
				if m := mags[i]; m&^exponent == 0 && x != 0 {
					// Exact: |x| is below 2^bits32 units, and float64 holds it all.
					sums[i] += int64(math.Ldexp(float64(x), bits32+bias-int(m&exponent)))
				}
			}
		}
	})
	if err != nil || q.kind == plan.Reduce && c.Rank() != q.root {
		return err
	}
	for i, m := range mags[:len(recv)] {
		if s, ok := special(m); ok {
			recv[i] = float32(s)
		} else {
			recv[i] = float32(math.Ldexp(float64(float32(sums[i])), int(m&exponent)-bias-bits32)) // from the integer, so that it rounds once
		}
	}
	return nil
}

// scaleAndAdd is q: the ranks agree on powers of two, cut their operands to integers of that scale, and add those, to
// all or to its root.
func scaleAndAdd[T mpi.Elem](ctx context.Context, c *mpi.Comm, q *call, mags []uint16, sums []T, op Op, cut func()) error {
	scale, add := meeting{call: q.part(scaling)}, meeting{call: q.part(adding)}
	setPair(&scale.call, plan.Allreduce, mags, mags, magnitudeOp)
	if q.kind == plan.Reduce {
		reduceCall(&add.call, c, sums, sums, op, q.root)
	} else {
		setPair(&add.call, plan.Allreduce, sums, sums, op)
	}
	return runHalves(ctx, c, q, &scale, &add, func() error {
		if mags[len(sums)] != 0 {
			return stateOf(c).fault(q.kind, q.seq, fmt.Errorf("%w: some rank has more than %d rows, which are too many over %d ranks", ErrArgument, mostRows(c), c.Size()))
		}
		cut()
		return nil
	})
}

// mostRows is how many rows a rank may have: all together are then few enough.
func mostRows(c *mpi.Comm) int { return maxSummand / c.Size() }

// measure stores in mags, all zeros before, the least power of two above all operands of each element, and which special
// values are among them. One more magnitude becomes other than 0 if there are more rows than most, of which all ranks learn
// by it.
func measure[F float32 | float64, T mpi.Elem](mags []uint16, rows [][]T, most int) {
	if len(rows) > most {
		mags[len(mags)-1] = hasNaN
		return
	}
	for _, row := range rows {
		for i, v := range mpi.View[F](mpi.Bytes(row)) {
			var m uint16
			switch x := float64(v); {
			case x == 0:
			case math.IsNaN(x):
				m = hasNaN
			case math.IsInf(x, 1):
				m = hasPlus
			case math.IsInf(x, -1):
				m = hasMinus
			default:
				_, e := math.Frexp(x) // |x| < 2^e
				m = uint16(e + bias)
			}
			mags[i] = (mags[i]|m)&^exponent | max(mags[i]&exponent, m&exponent)
		}
	}
}

// special is the sum of an element's operands where nothing has to be added: they are all zero, or there are infinities or
// NaNs among them. It is false for all other elements.
func special(m uint16) (float64, bool) {
	switch {
	case m&^exponent == 0:
		return 0, m == 0
	case m&hasNaN != 0 || m&hasPlus != 0 && m&hasMinus != 0:
		return math.NaN(), true
	case m&hasPlus != 0:
		return math.Inf(1), true
	}
	return math.Inf(-1), true
}

// fixed is x in units of 2^unit, cut towards zero, as a 128-bit integer; |x| is below 2^bits64 of them.
func fixed(x float64, unit int) (hi, lo uint64) {
	fraction, e := math.Frexp(math.Abs(x))
	m := uint64(math.Ldexp(fraction, 53))   // |x| = m · 2^(e-53)
	if shift := e - 53 - unit; shift >= 0 { // at most bits64-53
		hi, lo = m>>(64-shift), m<<shift // a shift by 64 is 0
	} else {
		lo = m >> -shift
	}
	if x < 0 {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
	}
	return hi, lo
}

// unfixed rounds a 128-bit integer of units of 2^unit to a float64.
func unfixed(hi, lo uint64, unit int) float64 {
	negative := int64(hi) < 0
	if negative {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
	}
	if hi != 0 {
		// Keep the top 64 bits; what falls off is remembered in the last.
		z := bits.LeadingZeros64(hi)
		top := hi<<z | lo>>(64-z)
		if lo<<z != 0 {
			top |= 1
		}
		lo, unit = top, unit+64-z
	}
	f := math.Ldexp(float64(lo), unit)
	if negative {
		f = -f
	}
	return f
}
