package collective

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
)

// The copy of an input that is overwritten is allocated once, and counts as what an execution holds.
func TestLibraryKeepsTheCopyOfAnInput(t *testing.T) {
	x, send := &execution{}, []byte("send")
	if got := x.keepInput(send); string(got) != "send" || &got[0] == &send[0] {
		t.Errorf("%q is not a copy", got)
	}
	if n := testing.AllocsPerRun(10, func() { x.keepInput(send) }); n != 0 {
		t.Errorf("%g allocations for each call", n)
	}
	if x.heldBytes() < len(send) {
		t.Errorf("it holds %d bytes", x.heldBytes())
	}
}

// What the system's MPI library is not given: what it does not define as we do, and what it cannot count.
func TestWhatTheLibraryHas(t *testing.T) {
	const most = 1<<31 - 1
	of := func(k plan.Kind, typ kernel.Type, op Op, count int, counts ...int) *entry {
		e := &entry{key: key{kind: k, typ: elemType{kind: typ}, op: op, count: count}}
		e.counts[0] = counts
		return e
	}
	for _, k := range []struct {
		name  string
		e     *entry
		given bool
	}{
		{"sum of floats", of(plan.Allreduce, kernel.Float64, Sum, 8), true},
		{"max of integers", of(plan.Allreduce, kernel.Int32, Max, 8), true},
		{"max of floats", of(plan.Allreduce, kernel.Float32, Max, 8), false},
		{"min of floats", of(plan.Scan, kernel.Float64, Min, 8), false},
		{"max of complex numbers", of(plan.Allreduce, kernel.Complex64, Max, 8), false},
		{"own operator", of(plan.Allreduce, kernel.Int64, concat, 8), false},
		{"short floats", of(plan.Allreduce, kernel.BFloat16, Sum, 8), false},
		{"floats, moved", of(plan.Bcast, kernel.Float64, Op{}, 8), true},
		{"as many as it counts", of(plan.Bcast, kernel.Uint8, Op{}, most), true},
		{"more", of(plan.Bcast, kernel.Uint8, Op{}, most+1), false},
		{"blocks", of(plan.Gather, kernel.Uint8, Op{}, 0, most-5, 5), true},
		{"more in all blocks", of(plan.Gather, kernel.Uint8, Op{}, 0, most, 1), false},
	} {
		if k.e.libraryTakes() != k.given {
			t.Errorf("%s: taken %v", k.name, !k.given)
		}
	}
}
