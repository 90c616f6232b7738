package bench

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// What nccl-tests prints for the same: size is of all blocks together, count of one, and the bandwidths are the size's.
func TestFormatNCCL(t *testing.T) {
	for _, c := range []struct {
		op, want string // size, count, type, time, algbw, busbw
	}{
		{"allreduce", "8000 2000 float 2.00 4.00 6.00"},
		{"bcast", "8000 2000 float 2.00 4.00 4.00"},
		{"reduce", "8000 2000 float 2.00 4.00 4.00"},
		{"allgather", "32000 2000 float 2.00 16.00 12.00"},
		{"alltoall", "32000 2000 float 2.00 16.00 12.00"},
		{"gather", "32000 2000 float 2.00 16.00 12.00"},
		{"scatter", "32000 2000 float 2.00 16.00 12.00"},
		{"reduce_scatter", "8000 500 float 2.00 4.00 3.00"},
	} {
		var out strings.Builder
		p, err := NewPrinter(&out, io.Discard, FormatNCCL, Detail{}, operation(t, c.op))
		if err != nil {
			t.Fatal(err)
		}
		p.Row(Row{Op: c.op, Bytes: 8000, Ranks: 4, Average: 2})
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := strings.Fields(lines[len(lines)-1]); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s: %v, want %s", c.op, got, c.want)
		}
	}
	for _, op := range []string{"latency", "put"} {
		if _, err := NewPrinter(io.Discard, io.Discard, FormatNCCL, Detail{}, operation(t, op)); !errors.Is(err, ErrUsage) {
			t.Errorf("%s in a format for collectives: %v", op, err)
		}
	}
	for _, d := range []Detail{{Full: true}, {Tail: true}} {
		if _, err := NewPrinter(io.Discard, io.Discard, FormatNCCL, d, operation(t, "allreduce")); !errors.Is(err, ErrUsage) {
			t.Errorf("columns that it does not have, %+v: %v", d, err)
		}
	}
}

func operation(t *testing.T, name string) Operation {
	t.Helper()
	ops := Operations()
	i := slices.IndexFunc(ops, func(op Operation) bool { return op.Name == name })
	if i < 0 {
		t.Fatalf("no operation %q", name)
	}
	return ops[i]
}
