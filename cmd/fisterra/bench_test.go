package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/bench"
	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// tableOf reads OSU's output: the names of the columns, which are at least two blanks apart, and the
// numbers below each. The conditions, which it wants to see, are left out.
func tableOf(t *testing.T, out string) (names []string, rows [][]float64) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	header := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "# Size ") || strings.HasPrefix(line, "# Avg ") })
	if header < 0 {
		t.Fatalf("no header in\n%s", out)
	}
	wantConditions(t, strings.Join(lines[:header], "\n"))
	for name := range strings.SplitSeq(strings.TrimPrefix(lines[header], "# "), "  ") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	for _, line := range lines[header+1:] {
		var row []float64
		for _, field := range strings.Fields(line) {
			x, err := strconv.ParseFloat(field, 64)
			if field == "Pass" && len(row) < len(names) && names[len(row)] == "Validation" {
				x, err = 1, nil
			}
			if err != nil {
				t.Errorf("in line %q: %v", line, err)
			}
			row = append(row, x)
		}
		if len(row) != len(names) {
			t.Errorf("%d numbers in line %q for columns %q", len(row), line, names)
		}
		rows = append(rows, row)
	}
	return names, rows
}

// wantConditions fails unless lines say what figures depend on.
func wantConditions(t *testing.T, lines string) {
	t.Helper()
	for _, want := range []string{"# Fisterra ", "fisterra " + version, "go1.", " ranks on 1 hosts (fisterra), GOMAXPROCS ", "# transport chosen: ", "# transport shm (same host) to "} {
		if !strings.Contains(lines, want) {
			t.Errorf("the conditions do not say %q:\n%s", want, lines)
		}
	}
}

// Every operation, with every flag that it has, prints OSU's columns.
func TestBenchPrintsColumnsAsOSU(t *testing.T) {
	tail := []string{"P50 Tail Lat(us)", "P90 Tail Lat(us)", "P99 Tail Lat(us)"}
	bandwidth := []string{"P50 Tail BW(MB/s)", "P90 Tail BW(MB/s)", "P99 Tail BW(MB/s)"}
	full := []string{"Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations"}
	latency := append([]string{"Latency (us)"}, tail...)
	for _, op := range bench.Operations() {
		t.Run(op.Name, func(t *testing.T) {
			sizes, sizesFlag := []float64{8, 16}, "8:16"
			if op.Kind == bench.Windows { // so large that a rate in MB/s with two decimals is no 0.00, whatever else the machine does
				sizes, sizesFlag = []float64{64 << 10, 128 << 10}, "64K:128K"
			}
			args := []string{"bench", op.Name, "-m", sizesFlag, "-i", "20", "-x", "2", "-c", "-z"}
			want := map[string][]string{"latency": latency, "fresh": latency, "pairs": latency, "put": latency, "get": latency,
				"bw": append([]string{"Bandwidth (MB/s)"}, bandwidth...), "bibw": append([]string{"Bandwidth (MB/s)"}, bandwidth...),
				"mbw_mr": append([]string{"MB/s", "Messages/s"}, bandwidth...)}[op.Name]
			switch op.Kind {
			case bench.Windows:
				args = append(args, "-W", "4")
			case bench.Collective:
				args = append(args, "-f")
				want = append(slices.Clone(full), tail...)
			}
			if !slices.Contains([]string{"barrier", "put", "get"}, op.Name) {
				want = slices.Insert(slices.Clone(want), len(want)-3, "Validation")
			}
			if op.Name == "barrier" { // has no sizes
				args = slices.DeleteFunc(args, func(a string) bool { return a == "-m" || a == sizesFlag })
				sizes = []float64{0}
			} else {
				want = append([]string{"Size"}, want...)
			}
			r := fisterra(t, args...)
			if r.Code != 0 || !regexp.MustCompile(`# iterations are timed singly: reading the clock takes \d+\.\d+ us`).MatchString(r.Stdout) {
				t.Fatal(r)
			}
			names, rows := tableOf(t, r.Stdout)
			if !slices.Equal(names, want) || len(rows) != len(sizes) {
				t.Fatalf("%d rows of columns %q, want %d of %q", len(rows), names, len(sizes), want)
			}
			for i, row := range rows {
				at := func(name string) float64 { return row[slices.Index(names, name)] }
				if op.Name != "barrier" && at("Size") != sizes[i] {
					t.Errorf("size %g, want %g", at("Size"), sizes[i])
				}
				for k, x := range row {
					if x <= 0 {
						t.Errorf("%s is %g in %s", names[k], x, r.Stdout)
					}
				}
				last := len(row)
				if !slices.IsSorted(row[last-3:]) {
					t.Errorf("percentiles %v", row[last-3:])
				}
				if op.Kind == bench.Collective && (at("Iterations") != 20 || at("Min Latency(us)") > at("Avg Latency(us)") || at("Avg Latency(us)") > at("Max Latency(us)")) {
					t.Errorf("%s", r.Stdout)
				}
			}
		})
	}
}

// What -i and -x say of their defaults is what there is.
func TestBenchHelpHasTheDefaults(t *testing.T) {
	for op, want := range map[string][]string{
		"latency":   {"default 10000, 1000 above 8 KiB", "default 100, 10 above 8 KiB"},
		"bw":        {"windows of messages per size (default 100, 20 above 8 KiB", "default 10, 2 above 8 KiB"},
		"allreduce": {"default 1000, 100 above 8 KiB", "default 100, 10 above 8 KiB"},
		"barrier":   {"default 1000)", "default 100;"},
	} {
		out, _, _ := command(nil, "bench", op, "--help")
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", op, w, out)
			}
		}
	}
	r := fisterra(t, "bench", "allreduce", "--sizes", "8,64K", "--format", "csv")
	rows, err := csv.NewReader(strings.NewReader(r.Stdout)).ReadAll()
	if err != nil || len(rows) != 3 || rows[1][10] != "1000" || rows[2][10] != "100" {
		t.Errorf("%v: %s", err, r)
	}
}

// A size from which on there is no limit but the usual one, as in OSU's benchmarks.
func TestBenchFromASizeOn(t *testing.T) {
	r := fisterra(t, "bench", "latency", "-m", "2M:", "-i", "1", "-x", "0", "--format", "csv")
	rows, err := csv.NewReader(strings.NewReader(r.Stdout)).ReadAll()
	if err != nil || len(rows) != 3 || rows[2][slices.Index(rows[0], "bytes")] != "4194304" {
		t.Errorf("%v: %s", err, r)
	}
}

// The ranks' own transport is what is measured and named.
func TestBenchOverTCP(t *testing.T) {
	r := fisterra(t, "bench", "latency", "--transport", "tcp", "-m", "1:64K", "-i", "50", "-x", "5", "-c")
	if r.Code != 0 || !strings.Contains(r.Stdout, "\n65536 ") || !strings.Contains(r.Stdout, "transport tcp") {
		t.Error(r)
	}
}

// A document per measurement, with all that its figures depend on; every operation by time.
func TestBenchPrintsJSON(t *testing.T) {
	for _, op := range bench.Operations() {
		t.Run(op.Name, func(t *testing.T) {
			ranks := 2
			if op.Name == "mbw_mr" || op.Name == "pairs" || op.Kind == bench.Collective {
				ranks = 4
			}
			sizes := []int{8, 4096}
			if op.Name == "barrier" {
				sizes = []int{0}
			}
			args := []string{"bench", op.Name, "-n", strconv.Itoa(ranks), "--sizes", strings.Trim(strings.ReplaceAll(fmt.Sprint(sizes), " ", ","), "[]"),
				"--budget", "10ms", "--format", "json"}
			if op.Kind == bench.Latency {
				args = append(args, "-z", "-x", "3")
			}
			r := fisterra(t, args...)
			var d struct {
				bench.Conditions
				Rows []bench.Row `json:"rows"`
			}
			if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil || r.Code != 0 {
				t.Fatalf("%v: %s", err, r)
			}
			if d.Title != op.Title || d.Ranks != ranks || d.Hosts != 1 || d.Launcher != "fisterra" || d.GOMAXPROCS < 1 ||
				!strings.Contains(d.Version, "go1.") || !strings.HasPrefix(d.Chosen, "transport chosen: ") || len(d.Transports) != 1 || !strings.Contains(d.Transports[0], "shm (same host)") {
				t.Errorf("conditions %+v", d.Conditions)
			}
			if len(d.Rows) != len(sizes) {
				t.Fatalf("%d rows for sizes %v", len(d.Rows), sizes)
			}
			for i, x := range d.Rows {
				if x.Op != op.Name || x.Bytes != sizes[i] || x.Ranks != ranks || x.Median <= 0 || x.P10 > x.Median || x.Median > x.P90 ||
					x.Average <= 0 || x.Reps < 11 || x.Iterations < x.Reps {
					t.Errorf("row %+v", x)
				}
				tail := op.Kind == bench.Latency
				if singly := tail || op.Kind == bench.Collective; tail != (x.Tail != nil) || singly != (d.Clock > 0) {
					t.Errorf("-z is %v, of single calls %v, and the tail %v, the clock %g", tail, singly, x.Tail, d.Clock)
				} else if tail && (x.Tail.P50 <= 0 || x.Tail.P50 > x.Tail.P99) {
					t.Errorf("tail %+v", *x.Tail)
				}
			}
		})
	}
}

func TestBenchPrintsCSV(t *testing.T) {
	columns := "op,bytes,ranks,median_us,p10_us,p90_us,avg_us,min_us,max_us,reps,iterations"
	for _, flags := range [][]string{nil, {"-z"}} {
		r := fisterra(t, append([]string{"bench", "allreduce", "-n", "3", "--sizes", "8,4000", "-i", "30", "-x", "0", "--format", "csv"}, flags...)...)
		if r.Code != 0 {
			t.Fatal(r)
		}
		wantConditions(t, r.Stderr)
		want := columns
		if flags != nil {
			want += ",tail_p50,tail_p90,tail_p99"
		}
		lines, err := csv.NewReader(strings.NewReader(r.Stdout)).ReadAll()
		if err != nil || len(lines) != 3 || strings.Join(lines[0], ",") != want {
			t.Fatalf("%v: %q", err, lines)
		}
		for i, bytes := range []string{"8", "4000"} {
			line := lines[i+1]
			if line[0] != "allreduce" || line[1] != bytes || line[2] != "3" || line[9] != "10" || line[10] != "30" {
				t.Errorf("%q", line)
			}
			for k, field := range line[3:] {
				if x, err := strconv.ParseFloat(field, 64); err != nil || x <= 0 {
					t.Errorf("%s is %q: %v", lines[0][k+3], field, err)
				}
			}
		}
	}
}

func TestBenchPrintsAsNCCL(t *testing.T) {
	r := fisterra(t, "bench", "allgather", "-n", "2", "--sizes", "4M", "-i", "20", "--format", "nccl") // so many that a rate in GB/s with two decimals is no 0.00, whatever else the machine does
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	if r.Code != 0 || len(lines) < 4 {
		t.Fatal(r)
	}
	n := len(lines) - 1
	if !strings.HasPrefix(lines[n], "# Avg bus bandwidth    : ") {
		t.Errorf("last line %q", lines[n])
	}
	wantConditions(t, strings.Join(lines[:n-3], "\n"))
	if got := strings.Fields(lines[n-3]); !slices.Equal(got, []string{"#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"}) {
		t.Errorf("header %q", got)
	}
	row := strings.Fields(lines[n-1])
	if len(row) != 9 || !slices.Equal(row[:5], []string{"8388608", "1048576", "float", "none", "-1"}) || row[8] != "0" {
		t.Fatalf("row %q", row)
	}
	var x [3]float64
	for i := range x {
		var err error
		if x[i], err = strconv.ParseFloat(row[5+i], 64); err != nil || x[i] <= 0 {
			t.Errorf("%q: %v", row, err)
		}
	}
}

// What makes no sense is refused before any rank starts, and named.
func TestBenchRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"latency -f", "'f'"},                     // no minimum and maximum over ranks
		{"latency -W 8", "'W'"},                   // no windows
		{"allreduce -W 8", "'W'"},                 // neither
		{"latency -i 0", "-i 0"},                  // an average of nothing
		{"latency -i 10 --budget 1s", "--budget"}, // one or the other
		{"latency --budget -1s", "--budget -1s"},
		{"latency -x -1", "-x -1"},
		{"bw -W 0", "-W 0"},
		{"latency --format xml", `"xml"`},
		{"latency --format nccl", "nccl"},
		{"allreduce --format nccl -z", "-z"},
		{"allreduce --sizes 7", "multiples of 4"},
		{"latency -n 3", "latency on 3 ranks: exactly 2 are needed (mbw_mr and pairs take more)"},
		{"barrier -m 1024", "'m'"},
		{"barrier --sizes 8,64", "barrier of 8 bytes: it moves none"},
		{"pairs -n 3", "pairs on 3 ranks: an even number is needed"},
		{"get -n 4", "get on 4 ranks: exactly 2 are needed"},
		{"nothing", "nothing"},
	} {
		if r := fisterra(t, append([]string{"bench"}, strings.Fields(c.args)...)...); r.Code != exitUsage || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("%s: want code %d and %q: %s", c.args, exitUsage, c.want, r)
		}
	}
}

// So are numbers of ranks that a launcher has started, before anything is printed of them, and no rank complains of another.
func TestBenchRefusesRanksOfALauncher(t *testing.T) {
	if r := fisterra(t, "run", "-n", "3", "--", lab.Fisterra(t), "bench", "latency"); r.Code != exitUsage || r.Stdout != "" ||
		!strings.Contains(r.Stderr, "exactly 2 are needed") || strings.Contains(r.Stderr, "cannot reach") {
		t.Error(r)
	}
}

// -x 0 is none, and not the number that comes without -x.
func TestBenchWarmup(t *testing.T) {
	for _, c := range []struct {
		given bool
		skip  int
		want  int // of bench.Options, where 0 is OSU's number
	}{{false, 0, 0}, {true, 0, -1}, {true, 5, 5}} {
		b := &benchFlags{ranks: 2, skip: c.skip, format: "osu"}
		o, err := b.options(bench.Operation{Most: 8}, func(flag string) bool { return c.given && flag == "warmup" })
		if err != nil || o.Skip != c.want {
			t.Errorf("%+v: %d, %v", c, o.Skip, err)
		}
	}
}
