package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// measured is one point of one launch, in microseconds.
type measured struct {
	Op     string  `json:"op"`
	Bytes  int     `json:"bytes"`
	Ranks  int     `json:"ranks"`
	Median float64 `json:"median_us"`
	P10    float64 `json:"p10_us"`
	P90    float64 `json:"p90_us"`
	Reps   int     `json:"reps"`
}

// parse reads a program's output: lines as peer.h prints them, or the document of fisterra
// bench --format json. Every size of the group must be there, once.
func parse(out string, g group) (launched, error) {
	read := parseLines
	if strings.HasPrefix(strings.TrimSpace(out), "{") {
		read = parseDocument
	}
	l, err := read(out)
	if err != nil {
		return l, err
	}
	if len(l.rows) == 0 {
		return l, errNoRows
	}
	for _, m := range l.rows {
		if m.Op != g.op || m.Ranks != g.ranks {
			return l, fmt.Errorf("asked for %s on %d ranks, it measured %s on %d", g.op, g.ranks, m.Op, m.Ranks)
		}
		if m.Median <= 0 || m.Reps < 1 {
			return l, fmt.Errorf("no measurement: %+v", m)
		}
	}
	for i, size := range g.sizes {
		if i >= len(l.rows) || l.rows[i].Bytes != size {
			return l, fmt.Errorf("no row for %d bytes in its place", size)
		}
	}
	if len(l.rows) != len(g.sizes) {
		return l, fmt.Errorf("%d rows for %d sizes", len(l.rows), len(g.sizes))
	}
	return l, nil
}

func parseDocument(out string) (launched, error) {
	var d struct {
		Title   string     `json:"title"`
		Version string     `json:"version"`
		Rows    []measured `json:"rows"`
	}
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		return launched{}, fmt.Errorf("cannot read %q: %w", out, err)
	}
	return launched{rows: d.Rows, comment: fmt.Sprintf("Fisterra %s, %s", d.Title, d.Version)}, nil
}

// parseLines reads lines of seven fields, and comments, which start with #.
func parseLines(out string) (launched, error) {
	var l launched
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case line[0] == '#':
			if l.comment == "" {
				l.comment = strings.TrimSpace(line[1:])
			}
		default:
			m, err := parseLine(line)
			if err != nil {
				return l, fmt.Errorf("cannot read %q: %w", line, err)
			}
			l.rows = append(l.rows, m)
		}
	}
	return l, nil
}

func parseLine(line string) (measured, error) {
	var m measured
	fields := strings.Fields(line)
	if len(fields) != 7 {
		return m, fmt.Errorf("%d fields, want op bytes ranks median p10 p90 repetitions", len(fields))
	}
	m.Op = fields[0]
	for _, f := range []struct {
		text string
		into *int
	}{{fields[1], &m.Bytes}, {fields[2], &m.Ranks}, {fields[6], &m.Reps}} {
		n, err := strconv.Atoi(f.text)
		if err != nil {
			return m, err
		}
		*f.into = n
	}
	for _, f := range []struct {
		text string
		into *float64
	}{{fields[3], &m.Median}, {fields[4], &m.P10}, {fields[5], &m.P90}} {
		x, err := strconv.ParseFloat(f.text, 64)
		if err != nil {
			return m, err
		}
		*f.into = x
	}
	return m, nil
}
