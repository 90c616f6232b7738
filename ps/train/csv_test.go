package train

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
