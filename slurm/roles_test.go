package slurm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func testLayout(t *testing.T, tasks ...int) *Layout {
	t.Helper()
	nodes := make([]string, len(tasks))
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%d", i)
	}
	l, err := NewLayout(nodes, tasks)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestCountRoles(t *testing.T) {
	for _, c := range []struct {
		ps, workers int
		where       Placement
		tasks       []int
		want        string // p and w by position
	}{
		{2, 6, "", []int{4, 4}, "ppwwwwww"},
		{2, 6, First, []int{4, 4}, "ppwwwwww"},
		{2, 6, Last, []int{4, 4}, "wwwwwwpp"},
		{2, 6, Spread, []int{4, 4}, "pwwwpwww"},
		{1, 3, Spread, []int{4}, "pwww"},
		{2, 4, Spread, []int{2, 2, 2}, "pwpwww"},
		{2, 6, Spread, []int{2, 2, 2, 2}, "pwwwpwww"},
		{5, 3, Spread, []int{2, 2, 2, 2}, "pppwpwpw"},
		{4, 1, Spread, []int{1, 1, 3}, "ppppw"},
		{0, 2, Spread, []int{2}, "ww"},
		{2, 0, Spread, []int{1, 1}, "pp"},
	} {
		roles, err := CountRoles(c.ps, c.workers, c.where, testLayout(t, c.tasks...))
		if err != nil {
			t.Errorf("%d ps %d workers %s: %v", c.ps, c.workers, c.where, err)
			continue
		}
		var got strings.Builder
		for _, r := range roles {
			got.WriteByte(r[0])
		}
		if got.String() != c.want {
			t.Errorf("%d ps %d workers %s over %v: %s, want %s", c.ps, c.workers, c.where, c.tasks, &got, c.want)
		}
	}
	l := testLayout(t, 2, 2)
	for _, c := range []struct {
		ps, workers int
		where       Placement
		is          error
		says        string
	}{
		{1, 2, First, ErrRoleCount, "1 ps and 2 workers are 3 roles, but there are 4 tasks"},
		{2, 3, First, ErrRoleCount, "2 ps and 3 workers are 5 roles, but there are 4 tasks"},
		{-1, 5, First, ErrRange, "-1 ps and 5 workers"},
		{1 << 62, 1 << 62, First, ErrRange, "want counts"},
		{1, 3, "middle", ErrRole, `"middle"`},
	} {
		if _, err := CountRoles(c.ps, c.workers, c.where, l); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d ps %d workers %s: %v, want %q", c.ps, c.workers, c.where, err, c.says)
		}
	}
}

// Spread gives the right number over any layout, never two more on a node than on
// another that had room.
func TestSpreadIsEven(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		tasks := make([]int, 1+random.IntN(8))
		size := 0
		for i := range tasks {
			tasks[i] = 1 + random.IntN(5)
			size += tasks[i]
		}
		ps := random.IntN(size + 1)
		got := spread(ps, tasks)
		sum := 0
		for i, n := range got {
			sum += n
			for k, m := range got {
				if n > tasks[i] || n > m+1 && m < tasks[k] {
					t.Fatalf("%d ps over %v: %v", ps, tasks, got)
				}
			}
		}
		if sum != ps {
			t.Fatalf("%d ps over %v: %v", ps, tasks, got)
		}
	}
}

func TestParseRoles(t *testing.T) {
	roles, err := ParseRoles("ps, Worker,worker,CHIEF,evaluator")
	if err != nil || !slices.Equal(roles, Roles{PS, Worker, Worker, Chief, Evaluator}) {
		t.Errorf("%v, %v", roles, err)
	}
	if roles.String() != "ps,worker,worker,chief,evaluator" || roles.Index(2) != 1 || roles.Count(Worker) != 2 {
		t.Errorf("%s: index %d, %d workers", roles, roles.Index(2), roles.Count(Worker))
	}
	for _, c := range []struct {
		text   string
		column int
		says   string
	}{
		{"ps,wroker", 4, `"wroker" is not a role`},
		{"", 1, `"" is not a role`},
		{"ps,,worker", 4, `"" is not a role`},
		{"chief,ps,master", 0, "one chief at most"},
		{"chief,chief", 0, "one chief at most"},
	} {
		_, err := ParseRoles(c.text)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrRole) || e.Column != c.column || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v; want column %d, %q", c.text, err, c.column, c.says)
		}
	}
}

// The chief is the chief or master where there is one, else worker 0.
func TestChief(t *testing.T) {
	for _, c := range []struct {
		roles string
		want  int
		ok    bool
	}{
		{"ps,worker,worker", 1, true},
		{"worker,worker,ps", 0, true},
		{"ps,worker,chief", 2, true},
		{"master,ps,worker", 0, true},
		{"ps,ps", 0, false},
		{"ps,evaluator", 0, false},
	} {
		roles, err := ParseRoles(c.roles)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := roles.Chief(); p != c.want || ok != c.ok {
			t.Errorf("%s: chief at %d, %v; want %d, %v", c.roles, p, ok, c.want, c.ok)
		}
	}
}

func TestParsePorts(t *testing.T) {
	for _, c := range []struct {
		text string
		want []int
	}{
		{"13241-13244", []int{13241, 13242, 13243, 13244}},
		{"12001,12010", []int{12001, 12010}},
		{"12001", []int{12001}},
		{"12000-12001,12999", []int{12000, 12001, 12999}},
		{"12999,12000-12001", []int{12000, 12001, 12999}},
		{"1,65535", []int{1, 65535}},
	} {
		if got, err := ParsePorts(c.text); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v; want %v", c.text, got, err, c.want)
		}
	}
	for _, c := range []struct {
		text string
		is   error
	}{
		{"", ErrSyntax}, {"p[]", ErrSyntax}, {"[12001]", ErrSyntax}, {"12001-", ErrSyntax}, {"-3", ErrSyntax}, {"1,,2", ErrSyntax},
		{"70000", ErrRange}, {"0", ErrRange}, {"65535-65536", ErrRange}, {"99999999999999999999", ErrRange},
		{"12002-12001", ErrSyntax}, {"12001,12001", ErrRepeated}, {"12000-12005,12003", ErrRepeated},
		{strings.Repeat("1-65535,", 1000) + "1", ErrRepeated}, {"12 001", ErrSyntax},
	} {
		got, err := ParsePorts(c.text)
		if !errors.Is(err, c.is) {
			t.Errorf("%.40q: %v, %v; want %v", c.text, got, err, c.is)
		}
	}
}

func FuzzParsePorts(f *testing.F) {
	f.Add("12000-12001,12999")
	f.Add("1-65535,1-65535")
	f.Fuzz(func(t *testing.T, text string) {
		ports, err := ParsePorts(text)
		if err == nil && (len(ports) == 0 || len(ports) > MaxPort || !slices.IsSorted(ports) || ports[0] < 1 || ports[len(ports)-1] > MaxPort) {
			t.Errorf("%q: %v", text, ports)
		}
	})
}

func TestParseTFServer(t *testing.T) {
	two := []string{"n0", "n1"}
	for _, text := range []string{"10.0.0.1\n10.0.0.2", "10.0.0.1 10.0.0.2", "10.0.0.1\t10.0.0.2\n", " 10.0.0.1\r\n 10.0.0.2 \n\n"} {
		got, err := ParseTFServer(text, two)
		if err != nil || !slices.Equal(got, []string{"10.0.0.1", "10.0.0.2"}) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, err := ParseTFServer("a b c", nil); err != nil || len(got) != 3 {
		t.Errorf("any number: %v, %v", got, err)
	}
	for _, c := range []struct {
		text string
		is   error
		says string
	}{
		{"", ErrAddress, "no address for node 0 (n0)"},
		{" \n", ErrAddress, "no address for node 0 (n0)"},
		{"\n10.0.0.2", ErrAddress, "no address for node 0 (n0)"},
		{"10.0.0.1\n\n10.0.0.2", ErrAddress, "no address for node 1 (n1)"},
		{"10.0.0.1", ErrInconsistent, "1 addresses for 2 nodes"},
		{"10.0.0.1 10.0.0.2 10.0.0.3", ErrInconsistent, "3 addresses for 2 nodes"},
		{"10.0.0.1 10.0.0.1", ErrRepeated, "node 0 (n0) and node 1 (n1) have the same address"},
		{"10.0.0.1,10.0.0.2 x", ErrAddress, "is not an address"},
	} {
		if _, err := ParseTFServer(c.text, two); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, want %q", c.text, err, c.says)
		}
	}
}

func FuzzParseTFServer(f *testing.F) {
	f.Add("10.0.0.1\n10.0.0.2", 2)
	f.Add("\n", 0)
	f.Fuzz(func(t *testing.T, text string, n int) {
		got, err := ParseTFServer(text, make([]string, max(0, min(n, 100))))
		if err == nil && (len(got) == 0 || slices.Contains(got, "")) {
			t.Errorf("%q: %q", text, got)
		}
	})
}
