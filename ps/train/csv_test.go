package train

// CSV files: which line is a header, and which column the label.

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// Two files of the same width do not belong together if their labels are in different columns.
func TestLabelInDifferentColumns(t *testing.T) {
	for _, c := range []struct {
		train, test string
		wrong       []string
	}{
		{"label,a,b\n1,2,3\n0,4,5\n", "1,2,0\n0,4,1\n", []string{"d.csv.t: ", "in column 3", "column 1 of ", "d.csv "}},
		{"1,2,0\n0,4,1\n", "a,class,b\n1,0,3\n", []string{"d.csv.t: ", "in column 2", "column 3 of ", "d.csv "}},
		{"label,a,b\n1,2,3\n0,4,5\n", "a,b\n1,2\n0,4\n", []string{"d.csv.t: 2 columns, one less", "column 1)", "set aside"}},
		{"a,b,c,label\n1,2,3,0\n0,4,5,1\n", "a,b,c\n1,2,3\n", []string{"d.csv.t: 3 columns, one less", "column 4)"}},
		{"a,b,label\n2,3,1\n4,5,0\n", "1,2,0\n0,4,1\n", nil},
		{"2,3,1\n4,5,0\n", "0 1:1\n", nil},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "d.csv.t"), []byte(c.test))
		_, err := Open(write(t, filepath.Join(dir, "d.csv"), []byte(c.train)), 1)
		if c.wrong == nil {
			if err != nil {
				t.Errorf("%q and %q: %v", c.train, c.test, err)
			}
			continue
		}
		if !errors.Is(err, ErrData) {
			t.Errorf("%q and %q: %v", c.train, c.test, err)
			continue
		}
		for _, want := range c.wrong {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
}

// A mistake in the first row is one, and no reason to take the row for a header.
func TestMistakeInTheFirstRow(t *testing.T) {
	for text, wrong := range map[string]string{
		"1.2.3,4,a\n1,2,b\n": `d.csv:1: "1.2.3" in column 1 is not a finite number; a header would`,
		",4,a\n1,2,b\n":      `d.csv:1: "" in column 1`,
		"1,x,2\n1,y,0\n":     `d.csv:1: "x" in column 2`,
		"1,2,a\n1,x,b\n":     `d.csv:2: "x" in column 2 is not a finite number`,
	} {
		_, err := Open(write(t, filepath.Join(t.TempDir(), "d.csv"), []byte(text)), 1)
		if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: %v, want %q", text, err, wrong)
		}
		if err != nil && strings.Contains(wrong, ":2:") && strings.Contains(err.Error(), "header") {
			t.Errorf("%q: %v, which is no header", text, err)
		}
	}
}

// Of a line without numbers every field is the name of a column, as of one with the word for a label; pandas leaves out
// the name of its index.
func TestHeaderLabel(t *testing.T) {
	for text, want := range map[string]int{"a,b,species": 2, ",a,b,species": 3, ",0,1,label": 3, "class,0,1": 0, "a,y,b": 1, "1,2,y": -1, "1,2,3": -1, "1,2,a": -1, "1,x,a": -1, "1,x,y": -1, "1_1,2_2,3": -1, "1_1,b,c": 2} {
		label, header := headerLabel(splitFields([]byte(text), nil))
		if !header {
			label = -1
		}
		if label != want {
			t.Errorf("%s: label in column %d, want %d", text, label, want)
		}
	}
}
