package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Format is how rows are printed.
type Format string

const (
	FormatOSU  Format = "osu"  // columns as the OSU micro-benchmarks print them
	FormatCSV  Format = "csv"  // a header line, then a line per row
	FormatJSON Format = "json" // an object per line
	FormatNCCL Format = "nccl" // collectives: algorithm and bus bandwidth, as nccl-tests
)

// Formats lists them, for usage texts.
var Formats = []string{string(FormatOSU), string(FormatCSV), string(FormatJSON), string(FormatNCCL)}

// Detail says how many columns OSU's format has.
type Detail int

const (
	Brief       Detail = iota
	Full               // -f: minimum, maximum and iterations of a collective
	Percentiles        // -z: P10, P50, P90 of the repetitions
)

// Printer prints rows as they come. Only rank 0 has any.
type Printer struct {
	w      io.Writer
	format Format
	detail Detail
	op     string
	begun  bool
}

// NewPrinter prints to w.
func NewPrinter(w io.Writer, f Format, d Detail, op string) (*Printer, error) {
	switch f {
	case FormatOSU, FormatCSV, FormatJSON:
	case FormatNCCL:
		if _, ok := collectiveNamed(op); !ok {
			return nil, usage("format nccl is for collectives, %s is not one", op)
		}
	default:
		return nil, usage("unknown format %q (%s)", f, strings.Join(Formats, ", "))
	}
	return &Printer{w: w, format: f, detail: d, op: op}, nil
}

// Comment prints a line that is no row.
func (p *Printer) Comment(format string, args ...any) {
	if p.format != FormatCSV {
		fmt.Fprintf(p.w, "# "+format+"\n", args...)
	}
}

// Row prints a row, with the header before the first.
func (p *Printer) Row(r Row) {
	if !p.begun {
		p.begun = true
		p.header()
	}
	switch p.format {
	case FormatJSON:
		b, _ := json.Marshal(r) // numbers and a word
		fmt.Fprintf(p.w, "%s\n", b)
	case FormatCSV:
		fmt.Fprintf(p.w, "%s,%d,%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%d,%d\n", r.Op, r.Bytes, r.Ranks, r.Median, r.P10, r.P90, r.Average, r.Least, r.Most, r.Reps, r.Iterations)
	case FormatNCCL:
		size, count := ncclSize(r)
		alg := float64(size) / r.Average / 1e3
		fmt.Fprintf(p.w, "%12d %12d %8s %12.2f %10.2f %10.2f\n", size, count, "float", r.Average, alg, alg*busFactor(r.Op, r.Ranks))
	default:
		p.osu(r)
	}
}

func (p *Printer) header() {
	switch p.format {
	case FormatCSV:
		fmt.Fprintln(p.w, "op,bytes,ranks,median_us,p10_us,p90_us,avg_us,min_us,max_us,reps,iterations")
	case FormatNCCL:
		fmt.Fprintf(p.w, "#%11s %12s %8s %12s %10s %10s\n", "size", "count", "type", "time", "algbw", "busbw")
		fmt.Fprintf(p.w, "#%11s %12s %8s %12s %10s %10s\n", "(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)")
	case FormatOSU:
		columns := []string{fmt.Sprintf("%-10s", "# Size")}
		for _, c := range p.columns() {
			columns = append(columns, fmt.Sprintf("%20s", c))
		}
		fmt.Fprintln(p.w, strings.Join(columns, ""))
	}
}

func (p *Printer) columns() []string {
	var c []string
	switch p.op {
	case "latency":
		c = []string{"Latency (us)"}
	case "bw", "bibw":
		c = []string{"Bandwidth (MB/s)"}
	case "mbw_mr":
		c = []string{"MB/s", "Messages/s"}
	case "put", "get":
		c = []string{"Latency (us)"}
	default:
		c = []string{"Avg Latency(us)"}
		if p.detail == Full {
			c = append(c, "Min Latency(us)", "Max Latency(us)", "Iterations")
		}
	}
	if p.detail == Percentiles {
		c = append(c, "P10 (us)", "P50 (us)", "P90 (us)")
	}
	return c
}

func (p *Printer) osu(r Row) {
	fmt.Fprintf(p.w, "%-10d", r.Bytes)
	switch p.op {
	case "bw":
		fmt.Fprintf(p.w, "%20.2f", r.MBps())
	case "bibw":
		fmt.Fprintf(p.w, "%20.2f", 2*r.MBps())
	case "mbw_mr":
		fmt.Fprintf(p.w, "%20.2f%20.2f", r.MBps(), r.Rate())
	default:
		fmt.Fprintf(p.w, "%20.2f", r.Average)
		if p.detail == Full && !IsMessageOp(p.op) && p.op != "put" && p.op != "get" {
			fmt.Fprintf(p.w, "%20.2f%20.2f%20d", r.Least, r.Most, r.Iterations)
		}
	}
	if p.detail == Percentiles {
		fmt.Fprintf(p.w, "%20.2f%20.2f%20.2f", r.P10, r.Median, r.P90)
	}
	fmt.Fprintln(p.w)
}

// ncclSize is a row's size and count as nccl-tests has them: the bytes of all blocks together, which the
// bandwidths are of, and the elements that a call names, which are one block's where there are blocks.
func ncclSize(r Row) (bytes, count int) {
	op, _ := collectiveNamed(r.Op) // NewPrinter has asked for it
	bytes = op.total(r.Bytes, r.Ranks)
	switch r.Op {
	case "allgather", "reduce_scatter", "alltoall", "gather", "scatter":
		return bytes, bytes / elementBytes / r.Ranks
	}
	return bytes, bytes / elementBytes
}

// busFactor turns a collective's bandwidth into what its links carry, by
// the formulas of nccl-tests (doc/PERFORMANCE.md).
func busFactor(op string, ranks int) float64 {
	n := float64(ranks)
	switch op {
	case "allreduce":
		return 2 * (n - 1) / n
	case "allgather", "reduce_scatter", "alltoall", "gather", "scatter":
		return (n - 1) / n
	}
	return 1
}
