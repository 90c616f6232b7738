package slurm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hostlistRow is one line of what scontrol of Slurm 22.05 answered.
type hostlistRow struct {
	expr, expansion, stderr, compressed string
	count                               int
}

func hostlistRows(t testing.TB) []hostlistRow {
	t.Helper()
	text, err := os.ReadFile("testdata/hostlists.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")[1:]
	var rows []hostlistRow
	for _, line := range lines {
		f := strings.Split(line, "\t")
		n, err := strconv.Atoi(f[2])
		if err != nil || len(f) != 8 {
			t.Fatalf("hostlists.tsv: %q: %d fields, count %v", line, len(f), err)
		}
		rows = append(rows, hostlistRow{strings.ReplaceAll(f[0], `\t`, "\t"), f[3], f[4], f[5], n})
	}
	return rows
}

// nonsense holds the expressions to which scontrol gives an answer that nobody
// can have asked for, with exit code 0, and the error that is right instead.
var nonsense = map[string]string{
	"n[ 1-3]":               "column 3: ' ' where a number belongs",
	"n[1 -3]":               "column 4: ' ' where a comma or a closing bracket belongs",
	"n0-3]":                 "column 5: a closing bracket without an opening one",
	"n]0[":                  "column 2: a closing bracket without an opening one",
	"n[0-3][":               "column 7: bracket is not closed",
	"n99999999999999999999": "column 2: number 99999999999999999999 does not fit Slurm's 64 bits",
}

func TestExpandAnswersAsSlurm(t *testing.T) {
	seen := 0
	for _, row := range hostlistRows(t) {
		got, err := Expand(row.expr)
		if want, ok := nonsense[row.expr]; ok {
			seen++
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Expand(%q) = %q, %v; want the error %q", row.expr, got, err, want)
			}
			continue
		}
		if row.stderr != "" {
			var e *Error
			if !errors.As(err, &e) || e.Column == 0 || e.Value != row.expr {
				t.Errorf("Expand(%q) = %q, %v; want an error with a column, as Slurm's %q", row.expr, got, err, row.stderr)
			}
			continue
		}
		if err != nil {
			t.Errorf("Expand(%q): %v", row.expr, err)
			continue
		}
		if len(got) != row.count {
			t.Errorf("Expand(%q): %d names, want %d", row.expr, len(got), row.count)
		}
		if strings.Contains(row.expansion, "...") {
			if got[0] != "n0" || got[65535] != "n65535" {
				t.Errorf("Expand(%q): from %s to %s", row.expr, got[0], got[len(got)-1])
			}
			continue
		}
		if strings.Join(got, " ") != row.expansion {
			t.Errorf("Expand(%q) = %q, want %q", row.expr, got, row.expansion)
		}
	}
	if seen != len(nonsense) {
		t.Errorf("%d of %d rows with nonsense answers found in the table", seen, len(nonsense))
	}
}

func TestCompressAnswersAsSlurm(t *testing.T) {
	for _, row := range hostlistRows(t) {
		if nonsense[row.expr] != "" || row.stderr != "" || row.count == 0 || row.compressed == "-" {
			continue
		}
		got, err := Compress(strings.Split(row.expansion, " "))
		if err != nil || got != row.compressed {
			t.Errorf("Compress(%q) = %q, %v; want %q", row.expansion, got, err, row.compressed)
		}
	}
}

func TestExpandOrderWidthAndRepeats(t *testing.T) {
	for _, c := range []struct{ expr, want string }{
		{"n[1-2],m5,o[3-4,6,7-9]", "n1 n2 m5 o3 o4 o6 o7 o8 o9"},
		{"n[0001-0003],m5,o[009-011]", "n0001 n0002 n0003 m5 o009 o010 o011"},
		{"compute-b24-[1-3,5-9],compute-b25-[1,4,8]", "compute-b24-1 compute-b24-2 compute-b24-3 compute-b24-5 compute-b24-6 compute-b24-7 compute-b24-8 compute-b24-9 compute-b25-1 compute-b25-4 compute-b25-8"},
		{"compute-b2[011,022]", "compute-b2011 compute-b2022"},
		{"rack[1-2]node[3-4]", "rack1node3 rack1node4 rack2node3 rack2node4"},
		{"tux[2,1-2]", "tux2 tux1 tux2"},
		{"n[2,10]", "n2 n10"},
		{"1.2.3.[089, 100-102]", "1.2.3.089 1.2.3.100 1.2.3.101 1.2.3.102"},
		{"a[0-1]b[0-1]c[0-1]d[0-1]", "a0b0c0d0 a0b0c0d1 a1b0c0d0 a1b0c0d1 a0b1c0d0 a0b1c0d1 a1b1c0d0 a1b1c0d1 a0b0c1d0 a0b0c1d1 a1b0c1d0 a1b0c1d1 a0b1c1d0 a0b1c1d1 a1b1c1d0 a1b1c1d1"},
		{"a[1,3-4]b[7,5]c[2,1]", "a1b7c2 a1b7c1 a3b7c2 a3b7c1 a4b7c2 a4b7c1 a1b5c2 a1b5c1 a3b5c2 a3b5c1 a4b5c2 a4b5c1"},
	} {
		got, err := Expand(c.expr)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("Expand(%q) = %q, %v; want %q", c.expr, got, err, c.want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	for _, c := range []struct {
		expr   string
		column int
		is     error
	}{
		{"c[6601", 2, ErrSyntax},
		{"compute-b2[1-,4]", 14, ErrSyntax},
		{"compute-b2[1,2,compute-b3]", 16, ErrSyntax},
		{"p[]", 3, ErrSyntax},
		{"n[1-3]-ib0", 7, ErrSyntax},
		{"n1,n[1-3].cluster.local", 10, ErrSyntax},
		{"n[0-999999999]", 5, ErrTooMany},
		{"n[0-65536]", 5, ErrTooMany},
		{"n[0-18446744073709551615]", 5, ErrTooMany},
		{"n[0-65535,0-65535]", 2, ErrTooMany},
		{"a[0-65535]b[0-65535]", 1, ErrTooMany},
		{"a[0-65535]b[0-65535]c[0-65535]d[0-65535]e[0-65535]", 1, ErrTooMany},
		{"n[18446744073709551616]", 3, ErrSyntax},
		{"n\x00", 2, ErrSyntax},
		{strings.Repeat("x", 200) + "[1-2]" + strings.Repeat("y", 60) + "[1-2]", 1, ErrTooMany},
	} {
		_, err := Expand(c.expr)
		var e *Error
		if !errors.As(err, &e) || e.Column != c.column || !errors.Is(err, c.is) {
			t.Errorf("Expand(%q): %v; want column %d and %v", c.expr, err, c.column, c.is)
		}
	}
	many := strings.Repeat("n[0-65535],", 5)
	if _, err := Expand(many); !errors.Is(err, ErrTooMany) {
		t.Errorf("five times 65536 names: %v", err)
	}
	// An error never shows a megabyte of the expression.
	if _, err := Expand(strings.Repeat("n", 1<<20)); err == nil || len(err.Error()) > 400 {
		t.Errorf("an endless name: %d bytes of message", len(fmt.Sprint(err)))
	}
}

func TestCompressRefusesWhatNoExpressionCanSay(t *testing.T) {
	for _, name := range []string{"", "a,b", "a b", "a[1]", "a]", "a\n", "n99999999999999999999", strings.Repeat("x", 256)} {
		if got, err := Compress([]string{"n1", name}); !errors.Is(err, ErrSyntax) {
			t.Errorf("Compress(n1, %q) = %q, %v", name, got, err)
		}
	}
	if got, err := Compress(slices.Repeat([]string{"n1"}, MaxHosts+1)); !errors.Is(err, ErrTooMany) {
		t.Errorf("Compress of one name more than Expand answers: %d bytes, %v", len(got), err)
	}
	if got, err := Compress(nil); got != "" || err != nil {
		t.Errorf("Compress() = %q, %v", got, err)
	}
}

// A list longer than one bracket may hold goes into two.
func TestCompressSplitsLongRanges(t *testing.T) {
	names := make([]string, MaxRange+2)
	for i := range names {
		names[i] = "n" + strconv.Itoa(i)
	}
	got, err := Compress(names)
	if err != nil || got != "n[0-65535],n[65536-65537]" {
		t.Fatalf("%.60q, %v", got, err)
	}
	back, err := Expand(got)
	if err != nil || !slices.Equal(back, names) {
		t.Fatalf("not the same back: %d names, %v", len(back), err)
	}
}

// FuzzHostlist holds two promises: no input makes Expand panic or answer beyond
// its limits, and Expand(Compress(x)) is x for every list of names there is.
func FuzzHostlist(f *testing.F) {
	for _, row := range hostlistRows(f) {
		f.Add(row.expr)
	}
	f.Add("n18446744073709551615,n18446744073709551615,n0")
	f.Add("n9,n10,n09,n10,n099,n100")
	f.Fuzz(func(t *testing.T, expr string) {
		if names, err := Expand(expr); err == nil {
			checkRoundTrip(t, names)
		} else if e := (*Error)(nil); !errors.As(err, &e) || e.Column < 1 || e.Column > len(expr)+1 {
			t.Errorf("Expand(%q): %v: no column within the text", expr, err)
		}
		var names []string
		for name := range strings.SplitSeq(expr, ",") {
			if checkName(name) == nil {
				names = append(names, name)
			}
		}
		checkRoundTrip(t, names)
	})
}

func checkRoundTrip(t *testing.T, names []string) {
	t.Helper()
	if len(names) > MaxHosts {
		t.Fatalf("%d names", len(names))
	}
	packed, err := Compress(names)
	if err != nil {
		t.Fatalf("Compress(%.200q): %v", names, err)
	}
	back, err := Expand(packed)
	if err != nil || !slices.Equal(back, names) {
		t.Fatalf("Expand(Compress(%.200q)) = Expand(%.200q) = %.200q, %v", names, packed, back, err)
	}
}

func TestTasksPerNode(t *testing.T) {
	for _, c := range []struct {
		text string
		want []int
	}{
		{"2", []int{2}},
		{"2,1,3", []int{2, 1, 3}},
		{"3(x2),2,1", []int{3, 3, 2, 1}},
		{"3(x2),2,11(x4)", []int{3, 3, 2, 11, 11, 11, 11}},
		{"13(x10)", slices.Repeat([]int{13}, 10)},
		{"2(x3),1", []int{2, 2, 2, 1}},
	} {
		got, err := ParseTasksPerNode(c.text)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v; want %v", c.text, got, err, c.want)
		}
		if back := FormatTasksPerNode(c.want); back != c.text {
			t.Errorf("%v written as %q, want %q", c.want, back, c.text)
		}
	}
	for _, text := range []string{"", "x", "0", "-1", "2(x0)", "2(x)", "2(x3", "2x3", "(x2)", "2,,1", "2, 1", "2(x3)1", "+2", "99999999999999999999", "2(y3)"} {
		if got, err := ParseTasksPerNode(text); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: %v, %v; want a syntax error", text, got, err)
		}
	}
	for _, text := range []string{"1(x16777216)", "1(x200000),1(x200000)"} {
		if _, err := ParseTasksPerNode(text); !errors.Is(err, ErrTooMany) {
			t.Errorf("%q: %v; want ErrTooMany", text, err)
		}
	}
}

func FuzzTasksPerNode(f *testing.F) {
	for _, s := range []string{"2(x3),1", "13(x10)", "1(x99999999999)", "(x)", ","} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		counts, err := ParseTasksPerNode(text)
		if err != nil {
			return
		}
		if len(counts) > MaxHosts {
			t.Fatalf("%q: %d nodes", text, len(counts))
		}
		back, err := ParseTasksPerNode(FormatTasksPerNode(counts))
		if err != nil || !slices.Equal(back, counts) {
			t.Fatalf("%q: %v read back as %v, %v", text, counts, back, err)
		}
	})
}
