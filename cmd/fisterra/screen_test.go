package main

// What a person sees of a run on a terminal.

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/ps/train"
)

// Each report is complete as it is: a launcher holds back what follows the last \r or \n.
func TestProgressBarEndsItsLine(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, columns: 80}
	for step := range int64(3) {
		out.Reset()
		s.report(train.Metric{Step: step, Steps: 2})
		text, ended := strings.CutSuffix(out.String(), "\x1b[K\r")
		if !ended || strings.Contains(text, "\r") || !strings.HasPrefix(text, "[") || len(text) >= s.columns {
			t.Errorf("%q", out.String())
		}
	}
}

// A report is one line of the terminal, whatever it has to say, and an ordinary terminal has room for the bar beside all of it.
func TestProgressBarStaysOnItsLine(t *testing.T) {
	accuracy := 0.9705
	for _, columns := range []int{1, 2, 20, 40, 79, 80, 200} {
		var out bytes.Buffer
		s := &screen{out: &out, columns: columns}
		s.report(train.Metric{Step: 24000, Steps: 24000, Loss: 0.0029, SamplesPerSecond: 124884, Accuracy: &accuracy})
		text, _ := strings.CutSuffix(out.String(), "\x1b[K\r")
		if len(text) >= columns {
			t.Errorf("%d columns: %d of %q", columns, len(text), text)
		}
		if columns >= 80 && (!strings.HasPrefix(text, "[####") || !strings.Contains(text, "97.05 %")) {
			t.Errorf("%d columns: %q", columns, text)
		}
	}
}
