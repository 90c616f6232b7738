package bench

import (
	"context"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Operation is something that can be measured by name.
type Operation struct {
	Name  string
	Short string // one line for a usage text
	Title string // what its output is headed with
	Kind  Kind
	// Least and Most bound the sizes in bytes by default.
	Least, Most int
	// Run measures it. All ranks call it; rank 0 gets the rows.
	Run   func(ctx context.Context, c *mpi.Comm, o Options, row func(Row)) error
	check func(ranks int, o Options) error
}

// Check finds, before there are ranks and without measuring, what Run would refuse of so many ranks and the options. The
// error is ErrUsage.
func (op Operation) Check(ranks int, o Options) error { return op.check(ranks, o) }

// Kind says what the columns of an operation are, and which options mean something to it.
type Kind int

const (
	Latency    Kind = iota // calls one after the other
	Windows                // windows of messages (Options.Window), reported as bandwidth
	Collective             // calls of all ranks, with a minimum and a maximum over them
)

// Operations lists what can be measured.
func Operations() []Operation {
	const mib = 1 << 20
	message := func(name, short, title string, most int) Operation {
		return Operation{name, short, title, messageOps[name].kind, 1, most, func(ctx context.Context, c *mpi.Comm, o Options, row func(Row)) error {
			return Messages(ctx, c, name, o, row)
		}, func(ranks int, o Options) error { return checkMessages(name, ranks, o) }}
	}
	ops := []Operation{
		message("latency", "half a round trip of blocking messages", "Latency Test", 4*mib),
		message("fresh", "the same, of messages that are written before and read after", "Fresh Latency Test", 4*mib),
		message("bw", "bandwidth of a window of messages", "Bandwidth Test", 4*mib),
		message("bibw", "bandwidth in both directions at once", "Bi-Directional Bandwidth Test", 4*mib),
		message("mbw_mr", "bandwidth and message rate of pairs of ranks", "Multiple Bandwidth / Message Rate Test", 4*mib),
		message("pairs", "a message between every two ranks", "All Pairs Test", mib),
	}
	for _, op := range []string{"put", "get"} {
		title := map[string]string{"put": "MPI_Put Latency Test", "get": "MPI_Get Latency Test"}[op]
		ops = append(ops, Operation{op, "one-sided " + op + " and flush, on memory that ranks can share", title, Latency, 1, 4 * mib,
			func(ctx context.Context, c *mpi.Comm, o Options, row func(Row)) error {
				return oneSided(ctx, c, op, o, row)
			}, func(ranks int, _ Options) error { return exactlyTwo(op, ranks) }})
	}
	for _, op := range collectiveOps() {
		least, most := elementBytes, mib
		if op.name == "barrier" {
			least, most = 0, 0
		}
		ops = append(ops, Operation{op.name, op.short, op.title, Collective, least, most, func(ctx context.Context, c *mpi.Comm, o Options, row func(Row)) error {
			return measureCollective(ctx, c, op, shared{}, o, row)
		}, func(_ int, o Options) error { return op.checkSizes(o.Sizes) }})
	}
	return ops
}

// PowersOfTwo lists least and its doubles up to most; 0 is followed by 1.
func PowersOfTwo(least, most int) []int {
	var sizes []int
	for n := least; n <= most; n = max(1, 2*n) {
		sizes = append(sizes, n)
	}
	return sizes
}
