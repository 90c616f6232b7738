package collective

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// rowsOf makes operands of wildly different magnitude.
func rowsOf[F float32 | float64](seed uint64, rows, n, spread int) [][]F {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make([][]F, rows)
	for r := range out {
		out[r] = make([]F, n)
		for i := range out[r] {
			out[r][i] = F(math.Ldexp(rng.NormFloat64(), rng.IntN(spread)-spread/2))
			if i == 0 {
				out[r][i] = 0
			}
		}
	}
	return out
}

// The same rows, spread over 1 to 9 ranks in different orders and by every
// plan, give the same bits, close to the exact sum.
func TestReproducibleSumHasOneResult(t *testing.T) {
	t.Run("float64", func(t *testing.T) { reproduce[float64](t, 60, 0x1p-100) })
	t.Run("float32", func(t *testing.T) { reproduce[float32](t, 20, 0x1p-36) })
	t.Run("subnormal", func(t *testing.T) {
		tiny := math.SmallestNonzeroFloat64
		together(t, 3, func(ctx context.Context, c *mpi.Comm) error {
			got := make([]float64, 1)
			if err := Allreduce(ctx, c, []float64{tiny}, got, ReproducibleSum); err != nil {
				return err
			}
			return equal("sum", got, []float64{3 * tiny})
		})
	})
}

// The result may take the place of a row.
func TestReproducibleSumInPlaceOfARow(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		rows := [][]float64{{1, 2}, {3, 4}}
		if err := ReproducibleAllreduce(ctx, c, rows, rows[1]); err != nil {
			return err
		}
		return equal("sum", rows[1], []float64{8, 12})
	})
}

func reproduce[F float32 | float64](t *testing.T, spread int, unit float64) {
	const seed, rows, n = 21, 36, 50
	t.Logf("seed %d", seed)
	all := rowsOf[F](seed, rows, n, spread)
	var first []F
	for _, size := range atMost(3, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		results := make([][]F, size)
		together(t, size, func(ctx context.Context, c *mpi.Comm) error {
			for _, f := range chosenPlans(plan.Allreduce) {
				if err := reconfigure(ctx, c, f); err != nil {
					return err
				}
				var mine [][]F
				for r := range rows {
					if (r*7+size)%size == c.Rank() {
						mine = append([][]F{all[r]}, mine...)
					}
				}
				got := make([]F, n)
				if err := ReproducibleAllreduce(ctx, c, mine, got); err != nil {
					return err
				}
				if results[c.Rank()] != nil {
					if err := equal(fmt.Sprint(f.Force), got, results[c.Rank()]); err != nil {
						return err
					}
				}
				results[c.Rank()] = got
			}
			return nil
		})
		for r := range results {
			if first == nil {
				first = results[0]
			}
			if err := equal(fmt.Sprintf("rank %d of %d", r, size), results[r], first); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range first {
		exact, largest := new(big.Float).SetPrec(2000), 0.0
		for _, row := range all {
			exact.Add(exact, big.NewFloat(float64(row[i])))
			largest = max(largest, math.Abs(float64(row[i])))
		}
		want, _ := exact.Float64()
		var rounding float64
		switch any(first).(type) {
		case []float32:
			rounding = math.Abs(want) * 0x1p-24
		default:
			rounding = math.Abs(want) * 0x1p-53
		}
		if d := math.Abs(float64(first[i]) - want); d > rounding*1.01+rows*unit*largest {
			t.Errorf("element %d is %g, the exact sum is %g", i, first[i], want)
		}
	}
}

func TestReproducibleSumOfSpecialValues(t *testing.T) {
	inf := math.Inf(1)
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		send := []float64{inf, inf, math.NaN(), 1, -inf, math.MaxFloat64, 0}
		if c.Rank() == 1 {
			send = []float64{1, -inf, 2, 2, -5, math.MaxFloat64, 0}
		}
		recv := make([]float64, len(send))
		if err := Reduce(ctx, c, send, recv, ReproducibleSum, 1); err != nil {
			return err
		}
		if c.Rank() == 0 {
			return equal("not the root's", recv, make([]float64, len(send)))
		}
		want := []float64{inf, math.NaN(), math.NaN(), 3, -inf, inf, 0}
		for i := range want {
			if recv[i] != want[i] && !(math.IsNaN(recv[i]) && math.IsNaN(want[i])) {
				return fmt.Errorf("element %d is %g, want %g", i, recv[i], want[i])
			}
		}
		return nil
	})
}

// The exact sum 2⁵⁴+2³⁰+1 is rounded once: to a float64 first it would be half way between two float32.
func TestReproducibleSumRoundsOnce(t *testing.T) {
	rows := slices.Repeat([][]float32{{0x1p37}}, 1<<17)
	rows = append(rows, []float32{0x1p30}, []float32{1})
	together(t, 1, func(ctx context.Context, c *mpi.Comm) error {
		sum := make([]float32, 1)
		if err := ReproducibleAllreduce(ctx, c, rows, sum); err != nil {
			return err
		}
		return equal("sum", sum, []float32{0x1p54 + 0x1p31})
	})
}

// A rank with too many rows is told so, and all others, too, which stay in step.
func TestReproducibleSumOfTooManyRows(t *testing.T) {
	const size = 16
	together(t, size, func(ctx context.Context, c *mpi.Comm) error {
		rows, sum := [][]float64{{1}}, make([]float64, 1)
		if c.Rank() == 1 {
			rows = slices.Repeat(rows, maxSummand/size)
		}
		if err := ReproducibleAllreduce(ctx, c, rows, sum); err != nil {
			return err
		}
		if err := equal("sum of as many as may be", sum, []float64{maxSummand/size + size - 1}); err != nil {
			return err
		}
		if c.Rank() == 1 {
			rows = append(rows, rows[0])
		}
		for range 2 {
			if err := within(ReproducibleAllreduce(ctx, c, rows, sum), ErrArgument); err != nil {
				return err
			}
		}
		if err := Allreduce(ctx, c, rows[0], sum, ReproducibleSum); err != nil {
			return err
		}
		return equal("sum afterwards", sum, []float64{size})
	})
}
