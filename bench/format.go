package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// Format is how rows are printed.
type Format string

const (
	FormatOSU  Format = "osu"  // columns as the OSU micro-benchmarks print them
	FormatCSV  Format = "csv"  // a header line, then a line per row
	FormatJSON Format = "json" // one document: the conditions, and the rows as a list
	FormatNCCL Format = "nccl" // collectives: algorithm and bus bandwidth, as nccl-tests
)

// Formats lists them, for usage texts.
var Formats = []string{string(FormatOSU), string(FormatCSV), string(FormatJSON), string(FormatNCCL)}

// Detail says which columns come beside those that are always there.
type Detail struct {
	Full bool // OSU's -f: minimum, maximum and iterations of a collective; csv and json have them anyway
	Tail bool // OSU's -z: percentiles of single iterations
	// Validation is OSU's -c: a column that says that the results were right. A wrong one (ErrWrong) ends the measurement
	// before its row.
	Validation bool
}

// Conditions are what figures depend on and do not say themselves.
type Conditions struct {
	Title      string   `json:"title"`
	Version    string   `json:"version"`
	Ranks      int      `json:"ranks"`
	Hosts      int      `json:"hosts"`
	Launcher   string   `json:"launcher"`
	GOMAXPROCS int      `json:"gomaxprocs"`
	Chosen     string   `json:"chosen"`     // which transport, and why
	Transports []string `json:"transports"` // how rank 0 reaches the others, and why so
	// Clock is what reading the clock takes of every iteration that is timed singly, in µs; 0: none is.
	Clock float64 `json:"clock_us,omitempty"`
}

func (c Conditions) lines() []string {
	lines := append([]string{
		fmt.Sprintf("Fisterra %s, %s", c.Title, c.Version),
		fmt.Sprintf("%d ranks on %d hosts (%s), GOMAXPROCS %d", c.Ranks, c.Hosts, c.Launcher, c.GOMAXPROCS),
		c.Chosen,
	}, c.Transports...)
	if c.Clock > 0 {
		lines = append(lines, fmt.Sprintf("iterations are timed singly: reading the clock takes %.3f us of each", c.Clock))
	}
	return lines
}

// Printer prints conditions and rows as they come. Only rank 0 has any.
type Printer struct {
	w, notes io.Writer
	format   Format
	detail   Detail
	op       Operation
	opened   bool // json: a document is begun
	rows     int
	busbw    float64 // nccl: of all rows together
}

// NewPrinter prints the rows of op to w. The conditions go there too, as lines that start with #
// or within the document; with csv, which knows no comments, to notes.
func NewPrinter(w, notes io.Writer, f Format, d Detail, op Operation) (*Printer, error) {
	switch f {
	case FormatOSU, FormatCSV, FormatJSON:
	case FormatNCCL:
		switch {
		case op.Kind != Collective:
			return nil, usage("format nccl is for collectives, %s is not one", op.Name)
		case d.Full || d.Tail:
			return nil, usage("format nccl has no columns for -f and -z")
		}
	default:
		return nil, usage("unknown format %q (%s)", f, strings.Join(Formats, ", "))
	}
	return &Printer{w: w, notes: notes, format: f, detail: d, op: op}, nil
}

// Begin prints the conditions, before the rows.
func (p *Printer) Begin(c Conditions) {
	if p.format == FormatJSON {
		b, _ := json.Marshal(c) // words and numbers
		fmt.Fprintf(p.w, "%s,\"rows\":[", b[:len(b)-1])
		p.opened = true
		return
	}
	out := p.w
	if p.format == FormatCSV {
		out = p.notes
	}
	for _, line := range c.lines() {
		fmt.Fprintln(out, "#", line)
	}
}

// End completes what Begin began, also where rows are missing because the measurement failed.
func (p *Printer) End() {
	if p.opened {
		fmt.Fprint(p.w, "\n]}\n")
		p.opened = false
	}
	if p.format == FormatNCCL && p.rows > 0 {
		fmt.Fprintf(p.w, "# Avg bus bandwidth    : %g\n", p.busbw/float64(p.rows))
	}
}

// Row prints a row, with the header before the first.
func (p *Printer) Row(r Row) {
	if p.rows == 0 {
		p.header()
	}
	p.rows++
	switch p.format {
	case FormatJSON:
		b, _ := json.Marshal(r) // numbers and a word
		separator := ","
		if p.rows == 1 {
			separator = ""
		}
		fmt.Fprintf(p.w, "%s\n%s", separator, b)
	case FormatCSV:
		fmt.Fprintf(p.w, "%s,%d,%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%d,%d", r.Op, r.Bytes, r.Ranks, r.Median, r.P10, r.P90, r.Average, r.Least, r.Most, r.Reps, r.Iterations)
		if p.detail.Tail {
			fmt.Fprintf(p.w, ",%.4f,%.4f,%.4f", r.Tail.P50, r.Tail.P90, r.Tail.P99)
		}
		fmt.Fprintln(p.w)
	case FormatNCCL:
		n := ncclRow(r)
		p.busbw += n.busbw
		const wrong = 0 // or there would be no row
		fmt.Fprintf(p.w, "%12d %12d %8s %6s %6d %12.2f %10.2f %10.2f %6d\n", n.size, n.count, "float", n.redop, n.root, r.Average, n.algbw, n.busbw, wrong)
	default:
		p.line(fmt.Sprint(r.Bytes), "", func(c column) string { return c.value(r) })
	}
}

func (p *Printer) header() {
	switch p.format {
	case FormatCSV:
		fmt.Fprint(p.w, "op,bytes,ranks,median_us,p10_us,p90_us,avg_us,min_us,max_us,reps,iterations")
		if p.detail.Tail {
			fmt.Fprint(p.w, ",tail_p50,tail_p90,tail_p99")
		}
		fmt.Fprintln(p.w)
	case FormatNCCL:
		const line = "#%11s %12s %8s %6s %6s %12s %10s %10s %6s\n"
		fmt.Fprintf(p.w, line, "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
		fmt.Fprintf(p.w, line, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
	case FormatOSU:
		p.line("# Size", "# ", func(c column) string { return c.name })
	}
}

// line prints a cell of each of OSU's columns. A barrier has no size: the mark stands before its first cell.
func (p *Printer) line(size, mark string, cell func(column) string) {
	for i, c := range p.columns() {
		switch {
		case i > 0:
			fmt.Fprintf(p.w, "%20s", cell(c))
		case p.op.Most == 0:
			fmt.Fprintf(p.w, "%17s", mark+cell(c))
		default:
			fmt.Fprintf(p.w, "%-10s%20s", size, cell(c))
		}
	}
	fmt.Fprintln(p.w)
}

// column is one of OSU's, after the size.
type column struct {
	name  string
	value func(Row) string
}

// columns are OSU's for the operation, with its words.
func (p *Printer) columns() []column {
	number := func(name string, value func(Row) float64) column {
		return column{name, func(r Row) string { return fmt.Sprintf("%.2f", value(r)) }}
	}
	latency, tail := "Latency (us)", "Tail Lat(us)"
	var columns []column
	switch p.op.Kind {
	case Windows:
		tail = "Tail BW(MB/s)"
		bandwidth := Row.MBps
		if p.op.Name == "bibw" {
			bandwidth = func(r Row) float64 { return 2 * r.MBps() }
		}
		if p.op.Name == "mbw_mr" {
			columns = append(columns, number("MB/s", bandwidth), number("Messages/s", Row.Rate))
		} else {
			columns = append(columns, number("Bandwidth (MB/s)", bandwidth))
		}
	case Collective:
		latency = "Avg Latency(us)"
		fallthrough
	default:
		columns = append(columns, number(latency, func(r Row) float64 { return r.Average }))
	}
	if p.detail.Full {
		columns = append(columns,
			number("Min Latency(us)", func(r Row) float64 { return r.Least }),
			number("Max Latency(us)", func(r Row) float64 { return r.Most }),
			column{"Iterations", func(r Row) string { return fmt.Sprint(r.Iterations) }})
	}
	if p.detail.Validation && validated(p.op) {
		columns = append(columns, column{"Validation", func(Row) string { return "Pass" }})
	}
	if p.detail.Tail {
		columns = append(columns,
			number("P50 "+tail, func(r Row) float64 { return r.Tail.P50 }),
			number("P90 "+tail, func(r Row) float64 { return r.Tail.P90 }),
			number("P99 "+tail, func(r Row) float64 { return r.Tail.P99 }))
	}
	return columns
}

// validated reports whether OSU's -c prints a column for the operation: a barrier has no result, and OSU's one-sided
// programs do not look at theirs.
func validated(op Operation) bool {
	return !slices.Contains([]string{"barrier", "put", "get"}, op.Name)
}

// ncclColumns are a row's as nccl-tests has them, for buffers that are not in place.
type ncclColumns struct {
	size         int // bytes of all blocks together, which the bandwidths are of
	count        int // elements that a call names, which are one block's where there are blocks
	redop        string
	root         int
	algbw, busbw float64 // GB/s
}

func ncclRow(r Row) ncclColumns {
	op, _ := collectiveNamed(r.Op) // NewPrinter has asked for it
	kind, _ := plan.ParseKind(r.Op)
	n := ncclColumns{size: op.total(r.Bytes, r.Ranks), redop: "none", root: -1}
	n.count = n.size / elementBytes
	n.algbw = float64(n.size) / r.Average / 1e3
	n.busbw = n.algbw * busFactor(kind, r.Ranks)
	if kind.HasBlocks() {
		n.count /= r.Ranks
	}
	if kind.Reduces() {
		n.redop = "sum"
	}
	if kind.Rooted() {
		n.root = 0
	}
	return n
}

// busFactor turns a collective's bandwidth into what its links carry, by
// the formulas of nccl-tests (doc/PERFORMANCE.md).
func busFactor(kind plan.Kind, ranks int) float64 {
	n := float64(ranks)
	switch {
	case kind == plan.Allreduce:
		return 2 * (n - 1) / n
	case kind.HasBlocks():
		return (n - 1) / n
	}
	return 1
}
