package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// row is one line of the table and one object of peers.json: medians over the launches in
// microseconds, null where a program did not run. Smaller is better.
type row struct {
	Op        string   `json:"op"`
	Transport string   `json:"transport"`
	Bytes     int      `json:"bytes"`
	Ranks     int      `json:"ranks"`
	Fisterra  *float64 `json:"fisterra"`
	OpenMPI   *float64 `json:"openmpi"`
	MPICH     *float64 `json:"mpich"`
	Gloo      *float64 `json:"gloo"`
	// Ratio is Fisterra over the best peer; null without either.
	Ratio *float64 `json:"ratio_best_peer"`
}

// point names what a number belongs to.
type point struct {
	group string
	bytes int
}

// round is what one launch of every program brought for a group.
type round struct {
	rows  map[string][]measured // by program
	mixed bool                  // the processors moved in one of the launches
}

// results collects the medians of all rounds: program, point.
type results map[string]map[point]*times

// times are medians of launches: steady those of rounds in which the processors stayed in one place, mixed those of the
// others. Programs are compared over the same rounds: else one might have had its launches nearby and another far away.
type times struct{ steady, mixed []float64 }

func (r results) add(g group, of round) {
	for program, rows := range of.rows {
		if r[program] == nil {
			r[program] = map[point]*times{}
		}
		for _, m := range rows {
			p := point{g.name(), m.Bytes}
			if r[program][p] == nil {
				r[program][p] = &times{}
			}
			r[program][p].add(m.Median, of.mixed)
		}
	}
}

func (t *times) add(median float64, mixed bool) {
	if mixed {
		t.mixed = append(t.mixed, median)
	} else {
		t.steady = append(t.steady, median)
	}
}

// median is over the rounds in which the processors stayed in one place, or over the others if there are none of these.
func (r results) median(program string, p point) *float64 {
	t := r[program][p]
	if t == nil {
		return nil
	}
	values := slices.Clone(t.steady)
	if len(values) == 0 {
		values = slices.Clone(t.mixed)
	}
	slices.Sort(values)
	n := len(values)
	m := (values[(n-1)/2] + values[n/2]) / 2
	return &m
}

// rows makes the table of the groups.
func (r results) rows(groups []group) []row {
	var table []row
	for _, g := range groups {
		for _, size := range g.sizes {
			p := point{g.name(), size}
			line := row{Op: g.op, Transport: g.transport, Bytes: size, Ranks: g.ranks,
				Fisterra: r.median("fisterra", p), OpenMPI: r.median("openmpi", p),
				MPICH: r.median("mpich", p), Gloo: r.median("gloo", p)}
			line.Ratio = line.ratio()
			table = append(table, line)
		}
	}
	return table
}

func (l row) ratio() *float64 {
	var best *float64
	for _, peer := range []*float64{l.OpenMPI, l.MPICH, l.Gloo} {
		if peer != nil && (best == nil || *peer < *best) {
			best = peer
		}
	}
	if l.Fisterra == nil || best == nil {
		return nil
	}
	ratio := *l.Fisterra / *best
	return &ratio
}

// printTable writes the rows as Markdown, which README.md shows as it is.
func printTable(w io.Writer, rows []row) {
	fmt.Fprintln(w, "| operation | transport | ranks | bytes | Fisterra µs | Open MPI µs | MPICH µs | Gloo µs | ratio to best peer |")
	fmt.Fprintln(w, "|---|---|---:|---:|---:|---:|---:|---:|---:|")
	for _, l := range rows {
		fmt.Fprintf(w, "| %s | %s | %d | %s | %s | %s | %s | %s | %s |\n", l.Op, l.Transport, l.Ranks, size(l.Bytes),
			number(l.Fisterra), number(l.OpenMPI), number(l.MPICH), number(l.Gloo), number(l.Ratio))
	}
}

func number(x *float64) string {
	if x == nil {
		return "–"
	}
	switch {
	case *x < 10:
		return fmt.Sprintf("%.2f", *x)
	case *x < 1000:
		return fmt.Sprintf("%.1f", *x)
	}
	return fmt.Sprintf("%.0f", *x)
}

func size(bytes int) string {
	switch {
	case bytes >= mib && bytes%mib == 0:
		return fmt.Sprintf("%d Mi", bytes/mib)
	case bytes >= kib && bytes%kib == 0:
		return fmt.Sprintf("%d Ki", bytes/kib)
	}
	return fmt.Sprint(bytes)
}

func writeJSON(path string, rows []row) error {
	text, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// missing names the programs that brought nothing for a point they were asked for.
func (r results) missing(groups []group, programs []*program) []string {
	absent := map[string]bool{}
	for _, p := range programs {
		for _, g := range groups {
			for _, s := range g.sizes {
				if p.can(g) && r.median(p.name, point{g.name(), s}) == nil {
					absent[strings.Join([]string{p.name, g.name()}, " ")] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(absent))
}
