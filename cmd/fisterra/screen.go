package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps/train"
	"github.com/fisterra-hpc/fisterra/slurm"
	"golang.org/x/term"
)

// envColumns tells the ranks that the launcher's output is a terminal of so
// many columns.
const envColumns = "FISTERRA_COLUMNS"

// screen is what the chief shows: a progress bar on a terminal, else a line
// every tenth of the way.
type screen struct {
	out     io.Writer
	columns int // 0: no terminal
	json    io.Writer
	tenth   int64
}

func newScreen(env environment, json bool) *screen {
	s := &screen{out: env.stdout, columns: terminalColumns(env.stdout)}
	if json {
		s.out, s.json, s.columns = env.stderr, env.stdout, 0
	} else if text, ok := env.lookup(envColumns); ok {
		if n, err := strconv.Atoi(text); err == nil {
			s.columns = max(0, n)
		}
	}
	return s
}

// terminalColumns is the width of w, 0 if it is no terminal.
func terminalColumns(w io.Writer) int {
	if out, wrapped := w.(*stdout); wrapped {
		w = out.w
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	if columns == 0 { // as of a serial line, which does not know
		return 80
	}
	return columns
}

// members says who is what, and by what they reach each other.
func (s *screen) members(w *mpi.World, roles slurm.Roles) {
	t := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "rank\trole\thost\treached by")
	for r, info := range w.Transports() {
		p := w.Position(r)
		fmt.Fprintf(t, "%d\t%s %d\t%s\t%s (%s)\n", r, roles[p], roles.Index(p), w.Host(r), info.Name, info.Reason)
	}
	t.Flush()
	if w.Size() > 1 {
		fmt.Fprintln(s.out, choiceLine(w))
	}
}

// report shows how the run stands.
func (s *screen) report(m train.Metric) {
	share := 0.0
	if m.Steps > 0 {
		share = float64(m.Step) / float64(m.Steps)
	}
	accuracy, tested := "", "test accuracy"
	if s.columns > 0 {
		tested = "test" // so that 80 columns have room for a bar
	}
	if m.Accuracy != nil {
		accuracy = fmt.Sprintf("  %s %.2f %%", tested, 100**m.Accuracy)
	}
	if s.columns == 0 {
		if tenth := int64(share * 10); tenth > s.tenth {
			s.tenth = tenth
			fmt.Fprintf(s.out, "step %d of %d  epoch %.1f  loss %.4f  %.0f samples/s%s\n", m.Step, m.Steps, m.Epoch, m.Loss, m.SamplesPerSecond, accuracy)
		}
		return
	}
	text := fmt.Sprintf("%3.0f %%  step %d/%d  loss %.4f  %.0f samples/s%s", 100*share, m.Step, m.Steps, m.Loss, m.SamplesPerSecond, accuracy)
	// The launcher passes text on up to the last \r or \n. With the \r at its end this report comes through at
	// once, not with the next one.
	fmt.Fprintf(s.out, "%s\x1b[K\r", s.line(share, text))
}

// line is the text behind a bar, or as much of it as a line of the terminal has room for: from the next line \r does not lead back.
func (s *screen) line(share float64, text string) string {
	const least = 5 // of the bar
	room := max(s.columns-1, 0)
	width := room - len("[] ") - len(text)
	if width < least {
		return text[:min(len(text), room)]
	}
	full := min(int(share*float64(width)), width)
	return fmt.Sprintf("[%s%s] %s", strings.Repeat("#", full), strings.Repeat(".", width-full), text)
}

// result shows what the run has come to.
func (s *screen) result(r *train.Result) {
	if s.columns > 0 {
		fmt.Fprintln(s.out)
	}
	t := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "model\t%s on %s, %s\n", r.Model, r.Data, r.Mode)
	fmt.Fprintf(t, "ranks\t%d (%d ps, %d workers), %s\n", r.Ranks, r.PS, r.Workers, r.Transport)
	fmt.Fprintf(t, "steps\t%d in %.2f s, %.0f samples/s\n", r.Steps, r.Seconds, r.SamplesPerSecond)
	if r.Evaluated {
		fmt.Fprintf(t, "train loss\t%.4f\n", r.TrainLoss)
		fmt.Fprintf(t, "test accuracy\t%.2f %%\n", 100*r.TestAccuracy)
	}
	if len(r.Lost) > 0 {
		fmt.Fprintf(t, "lost ranks\t%v\n", r.Lost)
	}
	if r.Interrupted {
		fmt.Fprintf(t, "interrupted\tbefore the end, as asked\n")
	}
	t.Flush()
	if s.json != nil {
		s.json.Write(r.JSON())
	}
}
