package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// chartColumns is how wide the time axis of a chart is: with what stands before it a line fits a terminal of 80 columns.
const chartColumns = 52

// ScaleChart draws points as lines of text, each of which begins with "# ": for every point where its simulated time (o) and its
// lower bound (|) lie on one logarithmic axis, an asterisk where both do. Colons and labels are powers of ten. Points whose
// times are not positive have no place on it.
func ScaleChart(w io.Writer, points []ScalePoint) error {
	low, high := time.Duration(math.MaxInt64), time.Duration(0)
	for _, p := range points {
		for _, t := range []time.Duration{p.Simulated, p.Bound} {
			if t > 0 {
				low, high = min(low, t), max(high, t)
			}
		}
	}
	if high == 0 {
		return nil
	}
	axis := chartAxis{low: math.Log(float64(low)), span: math.Log(float64(high)) - math.Log(float64(low))}
	ranks, bytes := len("ranks"), len("bytes")
	for _, p := range points {
		ranks, bytes = max(ranks, len(strconv.Itoa(p.Ranks))), max(bytes, len(strconv.Itoa(p.Bytes)))
	}
	var b strings.Builder
	line := func(r, n, row string) {
		b.WriteString(strings.TrimRight(fmt.Sprintf("# %*s %*s  %s", ranks, r, bytes, n, row), " ") + "\n")
	}
	decades, labels := axis.decades(low, high)
	b.WriteString("# o simulated, | lower bound, * both\n")
	line("ranks", "bytes", labels)
	for _, p := range points {
		row := []byte(decades)
		axis.mark(row, p.Bound, '|')
		axis.mark(row, p.Simulated, 'o')
		line(strconv.Itoa(p.Ranks), strconv.Itoa(p.Bytes), string(row))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// chartAxis places times, by the logarithm of the first one and the difference to that of the last.
type chartAxis struct{ low, span float64 }

func (a chartAxis) column(t time.Duration) int {
	if a.span == 0 {
		return 0
	}
	return int(math.Round((math.Log(float64(t)) - a.low) / a.span * (chartColumns - 1)))
}

// decades are an empty row and the labels above it. A label that has no room is left out.
func (a chartAxis) decades(low, high time.Duration) (row, labels string) {
	marks := []byte(strings.Repeat(" ", chartColumns))
	width := 0 // of labels
	for t := time.Duration(1); t <= high && t > 0; t *= 10 {
		if t < low {
			continue
		}
		at := a.column(t)
		marks[at] = ':'
		if label := t.String(); width == 0 || at > width {
			labels += strings.Repeat(" ", at-width) + label
			width = at + len([]rune(label))
		}
	}
	return string(marks), labels
}

// mark is an asterisk where another mark stands already.
func (a chartAxis) mark(row []byte, t time.Duration, with byte) {
	if t <= 0 {
		return
	}
	at := a.column(t)
	if row[at] == '|' {
		with = '*'
	}
	row[at] = with
}
