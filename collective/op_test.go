package collective

import (
	"fmt"
	"testing"
)

// An operator of the program's own does not look like none in a signature, whatever it is called.
func TestOwnOperatorsHaveCodes(t *testing.T) {
	for i := range 2000 {
		op := OpFunc(fmt.Sprint("operator ", i), func(dst, a, b []int32) {})
		if c := op.code(); c < userCode || c >= noOp {
			t.Fatalf("%v has the code %#x", op, c)
		}
	}
}
