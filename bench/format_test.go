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
		op, want string // size, count, type, redop, root, time, algbw, busbw, #wrong
	}{
		{"allreduce", "8000 2000 float sum -1 2.00 4.00 6.00 0"},
		{"bcast", "8000 2000 float none 0 2.00 4.00 4.00 0"},
		{"reduce", "8000 2000 float sum 0 2.00 4.00 4.00 0"},
		{"allgather", "32000 2000 float none -1 2.00 16.00 12.00 0"},
		{"alltoall", "32000 2000 float none -1 2.00 16.00 12.00 0"},
		{"gather", "32000 2000 float none 0 2.00 16.00 12.00 0"},
		{"scatter", "32000 2000 float none 0 2.00 16.00 12.00 0"},
		{"reduce_scatter", "8000 500 float sum -1 2.00 4.00 3.00 0"},
	} {
		var out strings.Builder
		p, err := NewPrinter(&out, io.Discard, FormatNCCL, Detail{}, operation(t, c.op))
		if err != nil {
			t.Fatal(err)
		}
		p.Row(Row{Op: c.op, Bytes: 8000, Ranks: 4, Average: 2})
		p.End()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		last := len(lines) - 1
		if average := "# Avg bus bandwidth    : " + strings.Fields(c.want)[7]; !strings.HasPrefix(average, lines[last]) { // 6.00 and 6
			t.Errorf("%s: %q, want %q", c.op, lines[last], average)
		}
		if got := strings.Fields(lines[last-1]); !slices.Equal(got, strings.Fields(c.want)) {
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
