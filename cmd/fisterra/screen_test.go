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
