package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

type kelvin float64

// An operator is for its own type also where a call of another type of the kind has left its plan.
func TestOwnOperatorIsForItsType(t *testing.T) {
	warmer := OpFunc("warmer", func(dst, a, b []float64) {
		for i := range dst {
			dst[i] = max(a[i], b[i])
		}
	})
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		own := []float64{float64(c.Rank()), -1}
		if err := Allreduce(ctx, c, own, own, warmer); err != nil {
			return err
		}
		if err := equal("warmer", own, []float64{1, -1}); err != nil {
			return err
		}
		return within(Allreduce(ctx, c, make([]kelvin, 2), make([]kelvin, 2), warmer), ErrArgument)
	})
}

// An operator of the program's own does not look like none in a signature, whatever it is called.
func TestOwnOperatorsHaveCodes(t *testing.T) {
	for i := range 2000 {
		op := OpFunc(fmt.Sprint("operator ", i), func(dst, a, b []int32) {})
		if c := op.code(); c < userCode || c >= noOp {
			t.Fatalf("%v has the code %#x", op, c)
		}
	}
}
