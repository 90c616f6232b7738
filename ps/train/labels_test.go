package train

// What a label may look like in a file.

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Labels that look like several, or that only Go would take for a number.
func TestOddLabels(t *testing.T) {
	for _, c := range []struct {
		file   string
		labels []string // of the classes; nil: it is refused
		says   string
	}{
		{"0 1:0.6 2:0.1\n0,3 1:0.2\n3 1:0.9\n", nil, `:2: label "0,3": a row has one label`},
		{"0,3 1:0.2\n1,2 1:0.3\n", nil, `:1: label "0,3": a row has one label`},
		{"0,3 1:0.2 2:7\n1 1:0.3\n", nil, `:1: label "0,3": a row has one label`},
		{"at,x,label\n2020-01-01 12:30:05,0.5,1\n", nil, `:2: "2020-01-01 12:30:05" in column 1 is not`},
		{"x,at,label\n0.5,2020-01-01 12:30,1\n", nil, `:2: "2020-01-01 12:30" in column 2 is not`},
		{"0.5,1_11\n0.7,11_1\n0.1,2\n", []string{"11_1", "1_11", "2"}, ""},
		{"0.5,+1\n0.7,1.0\n0.1,2\n", []string{"1", "2"}, ""},
		{"0,1,2,3,4\n1.5,2,7,1,0\n1,1,7,1,1\n", nil, ":1: the line counts its columns from 0"},
		{"0,1,2,3\n1.5,2,7,1\n", []string{"1", "3"}, ""},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "d.t"), []byte(c.file))
		d, err := Open(write(t, filepath.Join(dir, "d"), []byte(c.file)), 1)
		if c.labels == nil {
			if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v, want %q", c.file, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.file, err)
			continue
		}
		got := slices.Sorted(slices.Values(d.Labels))
		if !slices.Equal(got, c.labels) {
			t.Errorf("%q: classes %q, want %q", c.file, got, c.labels)
		}
	}
}
